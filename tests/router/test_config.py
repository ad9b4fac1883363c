"""Settings: read once, refused all at once, and the same as the documentation says."""

import re
from collections.abc import Iterator
from dataclasses import fields
from ipaddress import ip_network
from pathlib import Path

import pytest

from sandgate_router.config import FOR_OTHERS, NOT_YET, BadConfig, Command, Config, ListenAddress

DOCS = Path(__file__).parents[2] / "docs" / "configuration.md"


def read(
    environ: dict[str, str] | None = None,
    *,
    command: Command = "up",
    flags: dict[str, str] | None = None,
) -> Config:
    return Config.from_environ(environ or {}, command=command, flags=flags)


def faults(environ: dict[str, str], *, command: Command = "up") -> tuple[str, ...]:
    with pytest.raises(BadConfig) as caught:
        read(environ, command=command)
    return caught.value.faults


def test_up_needs_no_setting_at_all() -> None:
    config = read()
    assert config.listen == ListenAddress("127.0.0.1", 8080)
    assert config.metrics_listen is None
    assert (config.registry, config.isolation) == ("local", "bubblewrap")
    assert (config.effective_auth, config.makes_own_key) == ("capability", True)
    assert (config.proxy_timeout, config.drain_delay, config.drain_timeout) == (180, 5, 30)


def test_router_must_be_told_its_credential() -> None:
    (fault,) = faults({}, command="router")
    assert fault.startswith("no credential is set")
    assert read({"ROUTER_AUTH_TOKEN": "t"}, command="router").registry == "dns"


@pytest.mark.parametrize(
    ("environ", "effect"),
    [
        ({}, "ignore"),
        ({"SANDGATE_REGISTRY": "dns", "ROUTER_AUTH_TOKEN": "t"}, "trust"),
        ({"SANDGATE_REGISTRY": "dns", "SANDGATE_AUTH": "none"}, "trust"),
        ({"SANDGATE_REGISTRY": "dns", "SANDGATE_KEYS": "k"}, "ignore"),
        ({"SANDGATE_REGISTRY": "dns", "SANDGATE_KEYS": "k", "SANDGATE_POD_IP": "verify"}, "verify"),
        ({"SANDGATE_REGISTRY": "static:a.yaml", "ROUTER_AUTH_TOKEN": "t"}, "ignore"),
        ({"ROUTER_AUTH_TOKEN": "t", "SANDGATE_POD_IP": "trust"}, "trust"),
        (
            {"SANDGATE_REGISTRY": "dns", "SANDGATE_AUTH": "none", "SANDGATE_POD_IP": "ignore"},
            "ignore",
        ),
    ],
)
def test_what_a_pods_address_does_follows_from_the_settings(
    environ: dict[str, str], effect: str
) -> None:
    assert read(environ).effective_pod_ip == effect


@pytest.mark.parametrize(
    "environ", [{"SANDGATE_KEYS": "k"}, {"SANDGATE_SCOPED_TOKEN_FILE": "s"}, {}]
)
def test_no_address_is_trusted_where_a_token_is_for_one_sandbox(environ: dict[str, str]) -> None:
    (fault,) = faults({**environ, "SANDGATE_POD_IP": "trust"})
    assert fault.startswith("SANDGATE_POD_IP trust would let the token of one sandbox")


def test_the_networks_of_sandboxes_are_private_ones_by_default() -> None:
    assert [str(network) for network in read().upstream_networks] == [
        *("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7"),
    ]
    narrow = read({"SANDGATE_UPSTREAM_NETWORKS": "10.244.0.0/16, 10.1.2.3"})
    assert narrow.upstream_networks == (ip_network("10.244.0.0/16"), ip_network("10.1.2.3/32"))


def test_what_is_refused_by_name_can_be_set() -> None:
    assert read({"SANDGATE_DENIED": "a/b, c-*/*,"}).denied == ("a/b", "c-*/*")
    assert read({"SANDGATE_DENIED": ""}).denied == ()


def test_a_flag_wins_over_the_environment() -> None:
    config = read({"SANDGATE_LISTEN": "127.0.0.1:1"}, flags={"SANDGATE_LISTEN": "127.0.0.1:2"})
    assert config.listen.port == 2


@pytest.mark.parametrize(
    ("text", "host", "port", "loopback"),
    [
        ("127.0.0.1:0", "127.0.0.1", 0, True),
        ("127.9.9.9:65535", "127.9.9.9", 65535, True),
        ("localhost:80", "localhost", 80, True),
        ("[::1]:8080", "::1", 8080, True),
        ("0.0.0.0:8080", "0.0.0.0", 8080, False),
        ("[::]:8080", "::", 8080, False),
        ("10.0.0.7:8080", "10.0.0.7", 8080, False),
    ],
)
def test_a_listen_address_is_an_ip_address_and_a_port(
    text: str, host: str, port: int, *, loopback: bool
) -> None:
    environ = {"SANDGATE_LISTEN": text, "ALLOW_UNAUTHENTICATED_ROUTER": "true"}
    listen = read(environ).listen
    assert (listen.host, listen.port, listen.is_loopback) == (host, port, loopback)


@pytest.mark.parametrize(
    "text",
    [
        *("", "8080", ":8080", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:8_0"),
        *("127.0.0.1:٨٠", "::1:8080", "[::1:8080", "[127.0.0.1]:80", "127.0.0.1:80\n", "[]:80"),
        *("example.com:80", "127.1:80", "*:80"),
    ],
)
def test_what_is_no_listen_address_is_refused_with_the_value_quoted(text: str) -> None:
    (fault,) = faults({"SANDGATE_LISTEN": text})
    assert fault.startswith(f"SANDGATE_LISTEN {text!r} ")


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "1e400", "1_0", "", "3 ", "٣", "3s"])
def test_a_time_limit_is_a_plain_decimal_above_0(text: str) -> None:
    (fault,) = faults({"PROXY_TIMEOUT_SECONDS": text})
    assert fault.startswith(f"PROXY_TIMEOUT_SECONDS {text!r} is not a number of seconds")


def test_a_drain_delay_may_be_0() -> None:
    assert read({"SANDGATE_DRAIN_DELAY": "0.00"}).drain_delay == 0


@pytest.mark.parametrize("text", ["", "a..b", "-a", "a.", "Cluster.local", "a" * 64, "a b"])
def test_a_cluster_domain_is_a_lower_case_domain_name(text: str) -> None:
    (fault,) = faults({"CLUSTER_DOMAIN": text})
    assert fault == f"CLUSTER_DOMAIN {text!r} is not a domain name"


def test_trusted_proxies_are_networks() -> None:
    config = read({"TRUSTED_PROXY_CIDRS": "10.0.0.0/8, ::1,"})
    assert config.trusted_proxies == (ip_network("10.0.0.0/8"), ip_network("::1/128"))
    (fault,) = faults({"TRUSTED_PROXY_CIDRS": "10.0.0.1/8"})
    assert "holds '10.0.0.1/8', which is no network" in fault


def test_a_token_is_trimmed_and_a_blank_one_is_none() -> None:
    assert read({"ROUTER_AUTH_TOKEN": " secret\n"}).router_auth_token == "secret"
    assert read({"ROUTER_AUTH_TOKEN": "  "}).router_auth_token is None


@pytest.mark.parametrize("token", ["two words", "caf\xe9", "a\nb"])
def test_a_token_that_no_field_can_carry_is_refused_and_never_shown(token: str) -> None:
    (fault,) = faults({"ROUTER_AUTH_TOKEN": token})
    assert fault.startswith("ROUTER_AUTH_TOKEN holds")
    assert token not in fault


@pytest.mark.parametrize(
    ("environ", "auth"),
    [
        ({"ROUTER_AUTH_TOKEN": "t"}, "shared"),
        ({"ROUTER_AUTH_TOKEN": "t", "ALLOW_UNAUTHENTICATED_ROUTER": "1"}, "shared"),
        ({"ROUTER_AUTH_TOKEN": "t", "SANDGATE_AUTH": "shared"}, "shared"),
        ({"ROUTER_AUTH_TOKEN": "t", "SANDGATE_AUTH": "none"}, "none"),
        ({"SANDGATE_AUTH": "none"}, "none"),
        ({"ALLOW_UNAUTHENTICATED_ROUTER": "Yes"}, "none"),
        ({"SANDGATE_KEYS": "k"}, "capability"),
        ({"SANDGATE_SCOPED_TOKEN_FILE": "s"}, "capability"),
        ({"SANDGATE_KEYS": "k", "SANDGATE_AUTH": "capability"}, "capability"),
        ({"SANDGATE_KEYS": "k", "SANDGATE_AUTH": "none"}, "none"),
        ({"SANDGATE_KEYS": "k", "ROUTER_AUTH_TOKEN": "t", "SANDGATE_AUTH": "shared"}, "shared"),
        (
            {"SANDGATE_KEYS": "k", "ROUTER_AUTH_TOKEN": "t", "SANDGATE_AUTH": "capability"},
            "capability",
        ),
        ({"SANDGATE_KEYS": "k", "ALLOW_UNAUTHENTICATED_ROUTER": "no"}, "capability"),
        ({"SANDGATE_KEYS": "", "ROUTER_AUTH_TOKEN": "t"}, "shared"),
    ],
)
def test_who_may_use_sandboxes_follows_from_the_settings(
    environ: dict[str, str], auth: str
) -> None:
    environ |= {"SANDGATE_REGISTRY": "static:a.yaml", "SANDGATE_LISTEN": "0.0.0.0:0"}
    for command in ("up", "router"):
        config = read(environ, command=command)
        assert (config.effective_auth, config.makes_own_key) == (auth, False)


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"SANDGATE_LISTEN": "[::1]:0"},
        {"SANDGATE_AUTH": "capability"},
        {"SANDGATE_AUTH": "capability", "ROUTER_AUTH_TOKEN": "t"},
        {"SANDGATE_AUTH": "capability", "SANDGATE_LISTEN": "0.0.0.0:0"},
    ],
)
def test_up_makes_itself_a_key_where_nothing_else_is_said(environ: dict[str, str]) -> None:
    config = read(environ)
    assert (config.effective_auth, config.makes_own_key) == ("capability", True)


@pytest.mark.parametrize(
    ("environ", "fault"),
    [
        ({"SANDGATE_AUTH": "shared"}, "SANDGATE_AUTH shared needs ROUTER_AUTH_TOKEN"),
        ({"SANDGATE_AUTH": "open"}, "SANDGATE_AUTH 'open' is none of capability, shared, none"),
        (
            {"SANDGATE_KEYS": "k", "ROUTER_AUTH_TOKEN": "t"},
            "SANDGATE_KEYS and ROUTER_AUTH_TOKEN say different things: choose one by SANDGATE_AUTH",
        ),
        (
            {"SANDGATE_KEYS": "k", "ALLOW_UNAUTHENTICATED_ROUTER": "1"},
            "SANDGATE_KEYS and ALLOW_UNAUTHENTICATED_ROUTER say different things",
        ),
        (
            {"SANDGATE_SCOPED_TOKEN_FILE": "s", "ROUTER_AUTH_TOKEN": "t"},
            "SANDGATE_SCOPED_TOKEN_FILE and ROUTER_AUTH_TOKEN say different things",
        ),
        (
            {"SANDGATE_REGISTRY": "static:a.yaml"},
            "SANDGATE_REGISTRY static:a.yaml makes no claims, so nobody gets a token: give",
        ),
        ({"SANDGATE_AUDIENCE": ""}, "SANDGATE_AUDIENCE '' is not 1 to 128 of"),
        ({"SANDGATE_AUDIENCE": 'a"b'}, "SANDGATE_AUDIENCE 'a\"b' is not 1 to 128 of"),
        ({"SANDGATE_NAMESPACES": "team,A_b"}, "SANDGATE_NAMESPACES 'team,A_b' holds 'A_b', which"),
        ({"SANDGATE_REGISTRY": "static:"}, "SANDGATE_REGISTRY 'static:' is none of"),
        ({"SANDGATE_REGISTRY": "dns:x"}, "SANDGATE_REGISTRY 'dns:x' is none of local, kub"),
        ({"SANDGATE_POD_IP": "yes"}, "SANDGATE_POD_IP 'yes' is none of ignore, verify, trust"),
        ({"SANDGATE_UPSTREAM_NETWORKS": " "}, "SANDGATE_UPSTREAM_NETWORKS ' ' names no network"),
        ({"SANDGATE_UPSTREAM_NETWORKS": "10.0.0.1/8"}, "SANDGATE_UPSTREAM_NETWORKS '10.0.0.1/8' h"),
        (
            {"SANDGATE_UPSTREAM_NETWORKS": "10.0.0.0/8,127.0.0.0/8"},
            "SANDGATE_UPSTREAM_NETWORKS '10.0.0.0/8,127.0.0.0/8' holds '127.0.0.0/8', which is n",
        ),
        ({"SANDGATE_DENIED": "kubernetes"}, "SANDGATE_DENIED 'kubernetes' holds 'kubernetes', whi"),
        ({"SANDGATE_DENIED": "a/b/c"}, "SANDGATE_DENIED 'a/b/c' holds 'a/b/c', which is no NAMES"),
        ({"SANDGATE_DENIED": "A/b"}, "SANDGATE_DENIED 'A/b' holds 'A/b', which is no NAMESPACE/ID"),
        ({"SANDGATE_ISOLATION": ""}, "SANDGATE_ISOLATION '' is none of bubblewrap, none"),
        ({"SANDGATE_LISTEN": "0.0.0.0:80"}, "SANDGATE_LISTEN 0.0.0.0 is no loopback address"),
        ({"ALLOW_UNAUTHENTICATED_ROUTER": "maybe"}, "ALLOW_UNAUTHENTICATED_ROUTER 'maybe' is"),
    ],
)
def test_a_setting_that_cannot_be_used_is_refused(environ: dict[str, str], fault: str) -> None:
    (said,) = faults(environ)
    assert said.startswith(fault)


@pytest.mark.parametrize("environ", [{}, {"ROUTER_AUTH_TOKEN": "t"}])
def test_router_makes_itself_no_key_so_capability_needs_something_to_check_with(
    environ: dict[str, str],
) -> None:
    environ |= {"SANDGATE_AUTH": "capability", "SANDGATE_REGISTRY": "local"}
    assert faults(environ, command="router") == (
        "SANDGATE_AUTH capability needs SANDGATE_KEYS or SANDGATE_SCOPED_TOKEN_FILE",
    )


def test_all_faults_are_listed_at_once() -> None:
    wrong = {
        "SANDGATE_COLOUR": "blue",
        "SANDGATE_WORKERS": "2",
        "SANDGATE_ISOLATION": "hope",
        "PROXY_TIMEOUT_SECONDS": "0",
        "SANDGATE_AUTH": "shared",
    }
    named = [fault.split()[0] for fault in faults(wrong)]
    assert sorted(named) == sorted(wrong)


def test_a_variable_of_ours_that_is_no_setting_is_refused() -> None:
    assert faults({"SANDGATE_LISTENS": "x"}) == ("SANDGATE_LISTENS is no setting of the gateway",)


def test_a_flag_that_is_no_setting_is_refused() -> None:
    with pytest.raises(BadConfig, match="SANDGATE_LISTENS is no setting of the gateway"):
        read(flags={"SANDGATE_LISTENS": "x"})


@pytest.mark.parametrize("name", sorted(NOT_YET))
def test_a_planned_setting_is_refused_and_an_empty_one_counts_as_unset(name: str) -> None:
    assert faults({name: "x"}) == (f"{name} is not available in this version",)
    assert read({name: ""}) == read()


def test_every_variable_that_the_handle_or_the_runtime_names_is_known() -> None:
    root = DOCS.parents[1]
    named = {
        name
        for package in ("runtime/sandgate_runtime", "sdk/sandgate")
        for path in (root / package).rglob("*.py")
        for name in re.findall(r"\"(SANDGATE_[A-Z_]+[A-Z])\"", path.read_text())
    }
    settings = {row.metadata["name"] for row in fields(Config)}
    assert "SANDGATE_MAX_PROCESSES" in named
    assert named - settings <= FOR_OTHERS


@pytest.mark.parametrize("name", sorted(FOR_OTHERS))
def test_a_variable_of_the_handle_or_the_runtime_is_none_of_our_business(name: str) -> None:
    assert read({name: "x"}) == read()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("SANDGATE_SERVICE_HOST", "10.0.0.1"),
        ("SANDGATE_SERVICE_PORT", "8080"),
        ("SANDGATE_SERVICE_PORT_HTTP", "8080"),
        ("SANDGATE_PORT", "tcp://10.0.0.1:8080"),
        ("SANDGATE_PORT_8080_TCP", "tcp://10.0.0.1:8080"),
        ("SANDGATE_PORT_8080_TCP_PROTO", "tcp"),
        ("SANDGATE_PORT_8080_TCP_ADDR", "10.0.0.1"),
        ("SANDGATE_ROUTER_SVC_SERVICE_HOST", "10.0.0.1"),
        ("SANDGATE_ROUTER_SVC_PORT_53_UDP_PORT", "53"),
    ],
)
def test_what_kubernetes_sets_for_a_service_is_no_setting(name: str, text: str) -> None:
    assert read({name: text}) == read()


def test_a_port_by_itself_is_a_mistake_that_is_told() -> None:
    assert faults({"SANDGATE_PORT": "9000"}) == ("SANDGATE_PORT is no setting of the gateway",)


def documented_rows() -> Iterator[dict[str, str]]:
    lines = [line for line in DOCS.read_text().splitlines() if line.startswith("|")]
    names, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    for row in rows:
        yield dict(zip(names, row, strict=True))


def test_the_documentation_has_exactly_the_settings_with_their_flags_defaults_and_units() -> None:
    def code(text: str) -> str:
        return f"`{text}`" if text else ""

    expected = [
        {
            "variable": code(row.metadata["name"]),
            "flag": code(row.metadata["flag"]),
            "default of `up`": code(row.metadata["defaults"]["up"]),
            "default of `router`": code(row.metadata["defaults"]["router"]),
            "unit": row.metadata["unit"],
        }
        for row in fields(Config)
    ]
    documented = list(documented_rows())
    assert all(row.pop("meaning") for row in documented)
    assert documented == expected


def test_the_documentation_names_exactly_the_other_variables_that_begin_like_ours() -> None:
    named = set(re.findall(r"`(SANDGATE_[A-Z_]+)`", DOCS.read_text()))
    settings = {row.metadata["name"] for row in fields(Config)}
    ours = {name for name in settings if name.startswith("SANDGATE_")}
    assert named == ours | NOT_YET | FOR_OTHERS | {"SANDGATE_SERVICE_HOST"}


def test_no_secret_is_in_a_repr() -> None:
    config = read({"ROUTER_AUTH_TOKEN": "hunter2", "SANDGATE_CALLERS": "/etc/callers.yaml"})
    assert config.router_auth_token == "hunter2"
    assert "hunter2" not in repr(config)
    assert "callers.yaml" in repr(config)
