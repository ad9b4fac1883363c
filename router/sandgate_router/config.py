"""The gateway's settings: one frozen value, read once, refused when wrong.

Every setting has a row here with its unit, its default and what it is for;
docs/configuration.md is compared with these rows by a test. All faults are listed at once.
Nothing is read when this module is imported.
"""

import ipaddress
import re
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, cast

from sandgate_router.addresses import IpNetwork, is_never_network
from sandgate_router.names import parse_label

Command = Literal["up", "router"]
Auth = Literal["capability", "shared", "none"]

FOR_OTHERS = frozenset(
    {
        "SANDGATE_URL",
        "SANDGATE_TOKEN",
        "SANDGATE_ROUTER_TOKEN",
        "SANDGATE_CA",
        "SANDGATE_CLIENT_CERT",
        "SANDGATE_CONFIG",
        "SANDGATE_COMMAND_CPU_SECONDS",
        "SANDGATE_COMMAND_MEMORY_BYTES",
        "SANDGATE_COMMAND_OPEN_FILES",
        "SANDGATE_ISOLATED",
        "SANDGATE_KEEP_FINISHED",
        "SANDGATE_KEEP_FINISHED_SECONDS",
        "SANDGATE_MAX_COMMANDS",
        "SANDGATE_MAX_JSON_BYTES",
        "SANDGATE_MAX_PROCESSES",
        "SANDGATE_MAX_REQUESTS",
        "SANDGATE_OUTPUT_BUFFER_BYTES",
        "SANDGATE_OUTPUT_LIMIT_BYTES",
        "SANDGATE_SANDBOX_NAME",
        "SANDGATE_SANDBOX_UID",
        "SANDGATE_STATE_DIR",
    }
)
"""Variables of the handle and of the runtime: a gateway may be started where they are set."""

NOT_YET = frozenset(
    {
        "SANDGATE_TLS_CERT",
        "SANDGATE_TLS_CLIENT_CA",
        "SANDGATE_TLS_KEY",
        "SANDGATE_TLS_MTLS",
        "SANDGATE_WORKERS",
    }
)
"""Settings that are planned. Most of them restrict something, so they are never overlooked."""

_SERVICE_LINK = re.compile(
    r"SANDGATE_(?:\w+_)?(?:SERVICE_HOST|SERVICE_PORT(?:_\w+)?|PORT_[0-9]+_(?:TCP|UDP|SCTP)\w*)=.*"
    r"|SANDGATE_(?:\w+_)?PORT=(?:tcp|udp|sctp)://.*",
    re.ASCII | re.DOTALL,
)
"""What Kubernetes sets in every pod of a namespace that has a Service called `sandgate…`."""

_GIVE_ONE = "give SANDGATE_KEYS or ROUTER_AUTH_TOKEN, or state ALLOW_UNAUTHENTICATED_ROUTER=true"

_TRUST_UNDER_TOKENS = (
    "SANDGATE_POD_IP trust would let the token of one sandbox reach every other; give verify"
)

_AUTH_ROWS = frozenset(
    {
        "allow_unauthenticated",
        "auth",
        "keys",
        "listen",
        "router_auth_token",
        "scoped_token_file",
    }
)
"""What decides who may use the relay."""

_TRUE = frozenset({"1", "true", "t", "yes", "y", "on"})
_FALSE = frozenset({"", "0", "false", "f", "no", "n", "off"})


class BadConfig(Exception):
    """Settings that cannot be used; `faults` lists every one, each in a sentence."""

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = tuple(faults)


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """Where a listener is bound; port 0 takes any."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        return self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback


def _parse_listen(text: str) -> ListenAddress:
    match = re.fullmatch(
        r"(?:\[(?P<v6>[^\]]*:[^\]]*)\]|(?P<host>[^\[\]:]+)):(?P<port>[0-9]{1,5})", text
    )
    if match is None or int(match["port"]) > 65535:
        raise ValueError("is not HOST:PORT; an IPv6 address stands in brackets")
    host, port = match["v6"] or match["host"], match["port"]
    if host != "localhost":
        try:
            ipaddress.ip_address(host)
        except ValueError:
            raise ValueError("names a host; give its IP address") from None
    return ListenAddress(host, int(port))


def _parse_optional_listen(text: str) -> ListenAddress | None:
    return _parse_listen(text) if text else None


def _parse_seconds(text: str) -> float:
    seconds = _parse_optional_seconds(text)
    if seconds == 0:
        raise ValueError("is not a number of seconds above 0")
    return seconds


def _parse_optional_seconds(text: str) -> float:
    # Plain decimals, as everywhere here: `float()` would also take `1_0`, `nan` and `inf`.
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{0,9})?|\.[0-9]{1,9}", text):
        raise ValueError("is not a number of seconds")
    return float(text)


def _parse_count(text: str) -> int:
    if not re.fullmatch("[0-9]{1,9}", text):
        raise ValueError("is not a whole number")
    return int(text)


def _parse_bytes(text: str) -> int:
    if not re.fullmatch("[0-9]{1,18}", text):
        raise ValueError("is not a whole number of bytes")
    return int(text)


def _parse_flag(text: str) -> bool:
    lowered = text.strip().lower()
    if lowered not in _TRUE | _FALSE:
        raise ValueError("is neither true nor false")
    return lowered in _TRUE


def _parse_networks(text: str) -> tuple[IpNetwork, ...]:
    return tuple(_parse_network(part.strip()) for part in text.split(",") if part.strip())


def _parse_network(text: str) -> IpNetwork:
    try:
        return ipaddress.ip_network(text)
    except ValueError:
        raise ValueError(f"holds {text!r}, which is no network like 10.0.0.0/8") from None


def _parse_upstream_networks(text: str) -> tuple[IpNetwork, ...]:
    networks = _parse_networks(text)
    if not networks:
        raise ValueError("names no network; without one no sandbox could be dialled")
    for network in networks:
        if is_never_network(network):
            raise ValueError(f"holds {str(network)!r}, which is never dialled")
    return networks


def _parse_denied(text: str) -> tuple[str, ...]:
    patterns = tuple(part.strip() for part in text.split(",") if part.strip())
    for pattern in patterns:
        if not re.fullmatch("[a-z0-9*-]{1,63}/[a-z0-9*-]{1,63}", pattern):
            raise ValueError(f"holds {pattern!r}, which is no NAMESPACE/ID (* for any characters)")
    return patterns


def _parse_secret(text: str) -> str | None:
    secret = text.strip()
    if not secret:
        return None
    if not re.fullmatch(r"[\x21-\x7e]+", secret):
        raise ValueError("holds a space or a character that no Authorization header can carry")
    return secret


def _parse_domain(text: str) -> str:
    label = "[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
    # 253 for a whole name (RFC 1035 2.3.4), less `<id>.<namespace>.svc.`
    if len(text) > 121 or not re.fullmatch(rf"{label}(\.{label})*", text):
        raise ValueError("is not a domain name")
    return text


def _parse_registry(text: str) -> str:
    if text in {"local", "dns"} or (text.startswith("static:") and len(text) > len("static:")):
        return text
    if text == "kubernetes":
        return text
    raise ValueError("is none of local, kubernetes, static:FILE, dns")


def _parse_namespaces(text: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    for name in names:
        try:
            parse_label(name.encode())
        except ValueError:
            raise ValueError(f"holds {name!r}, which is no namespace") from None
    return names


def _parse_audience(text: str) -> str:
    if not re.fullmatch("[A-Za-z0-9._:/-]{1,128}", text):
        raise ValueError("is not 1 to 128 of A-Z a-z 0-9 . _ : / -")
    return text


def _one_of(*choices: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"is none of {', '.join(choices)}")
        return text

    return parse


def _parse_sampling(text: str) -> int:
    """Return N where one of N requests is meant; 0 for none."""
    lowered = text.strip().lower()
    if lowered in {"on", "off"}:
        return int(lowered == "on")
    match = re.fullmatch("1/([1-9][0-9]{0,8})", lowered)
    if match is None:
        raise ValueError("is none of on, off, 1/N")
    return int(match[1])


def _parse_path(text: str) -> Path | None:
    return Path(text) if text else None


def _setting(
    name: str,
    parse: Callable[[str], Any],
    default: str | Mapping[Command, str],
    *,
    flag: str = "",
    unit: str = "",
    secret: bool = False,
) -> Any:
    defaults = {"up": default, "router": default} if isinstance(default, str) else default
    return field(
        repr=not secret,
        metadata={"name": name, "parse": parse, "defaults": defaults, "flag": flag, "unit": unit},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All settings of one gateway process."""

    listen: ListenAddress = _setting(
        "SANDGATE_LISTEN",
        _parse_listen,
        {"up": "127.0.0.1:8080", "router": "0.0.0.0:8080"},
        flag="--listen",
    )
    """Where clients connect; port 0 takes any."""
    metrics_listen: ListenAddress | None = _setting(
        "SANDGATE_METRICS_LISTEN",
        _parse_optional_listen,
        {"up": "", "router": "0.0.0.0:9090"},
        flag="--metrics-listen",
    )
    """Where /metrics is served; empty turns it off."""
    registry: str = _setting(
        "SANDGATE_REGISTRY", _parse_registry, {"up": "local", "router": "dns"}, flag="--registry"
    )
    """What knows the sandboxes: local, kubernetes, static:FILE or dns."""
    kubeconfig: Path | None = _setting("KUBECONFIG", _parse_path, "")
    """How `kubernetes` reaches the API; empty takes the pod's service account."""
    namespaces: tuple[str, ...] = _setting("SANDGATE_NAMESPACES", _parse_namespaces, "")
    """Where `kubernetes` looks for sandboxes, separated by commas; empty is everywhere."""
    pools: Path | None = _setting("SANDGATE_POOLS", _parse_path, "", flag="--pools")
    """A YAML file of pools; empty means one pool `python` in `default`."""
    isolation: str = _setting(
        "SANDGATE_ISOLATION", _one_of("bubblewrap", "none"), "bubblewrap", flag="--isolation"
    )
    """How local sandboxes are isolated; none is for code that you trust."""
    auth: str | None = _setting(
        "SANDGATE_AUTH",
        lambda text: _one_of("capability", "shared", "none")(text) if text else None,
        "",
        flag="--auth",
    )
    """Who may use the relay: capability, shared or none; empty decides by the other settings."""
    keys: Path | None = _setting("SANDGATE_KEYS", _parse_path, "")
    """A YAML file of the keys that sign and verify capabilities."""
    audience: str = _setting("SANDGATE_AUDIENCE", _parse_audience, "sandgate")
    """Whom capabilities are for; gateways that share keys and not sandboxes need different ones."""
    callers: Path | None = _setting("SANDGATE_CALLERS", _parse_path, "")
    """A YAML file of those who may use the control API, with the digests of their tokens."""
    scoped_token_file: Path | None = _setting("SANDGATE_SCOPED_TOKEN_FILE", _parse_path, "")
    """A file with the secret of `v1.` tokens; empty takes none."""
    router_auth_token: str | None = _setting("ROUTER_AUTH_TOKEN", _parse_secret, "", secret=True)
    """The bearer token of `shared`."""
    allow_unauthenticated: bool = _setting("ALLOW_UNAUTHENTICATED_ROUTER", _parse_flag, "false")
    """Whether `router` may run without any credential."""
    proxy_timeout: float = _setting("PROXY_TIMEOUT_SECONDS", _parse_seconds, "180", unit="seconds")
    """Longest wait for a response head and for every later gap; caps X-Sandbox-Timeout."""
    cluster_domain: str = _setting("CLUSTER_DOMAIN", _parse_domain, "cluster.local")
    """The domain in the Host field that a sandbox sees, and in the name that `dns` asks for."""
    pod_ip: str | None = _setting(
        "SANDGATE_POD_IP",
        lambda text: _one_of("ignore", "verify", "trust")(text) if text else None,
        "",
    )
    """What X-Sandbox-Pod-IP does: ignore, verify or trust; None decides by the registry."""
    upstream_networks: tuple[IpNetwork, ...] = _setting(
        "SANDGATE_UPSTREAM_NETWORKS",
        _parse_upstream_networks,
        "10.0.0.0/8,172.16.0.0/12,192.168.0.0/16,100.64.0.0/10,fc00::/7",
    )
    """Networks in which the addresses of DNS answers and of X-Sandbox-Pod-IP must lie."""
    denied: tuple[str, ...] = _setting(
        "SANDGATE_DENIED",
        _parse_denied,
        "default/kubernetes,kube-system/*,kube-public/*,kube-node-lease/*,*/sandbox-router-svc",
    )
    """Names of sandboxes, `namespace/id`, that nobody reaches; `*` stands for any characters."""
    trusted_proxies: tuple[IpNetwork, ...] = _setting("TRUSTED_PROXY_CIDRS", _parse_networks, "")
    """Networks whose X-Forwarded-* fields are kept, separated by commas."""
    drain_delay: float = _setting(
        "SANDGATE_DRAIN_DELAY", _parse_optional_seconds, "5", unit="seconds"
    )
    """How long requests are still served after SIGTERM took readiness away; 0 is allowed."""
    drain_timeout: float = _setting("SANDGATE_DRAIN_TIMEOUT", _parse_seconds, "30", unit="seconds")
    """How long exchanges under way may take to finish after that."""
    keep_origin: bool = _setting("SANDGATE_KEEP_ORIGIN", _parse_flag, "false")
    """Whether Origin passes on a WebSocket handshake; it does not match the Host that we send."""
    websocket_idle_timeout: float = _setting(
        "WEBSOCKET_IDLE_TIMEOUT_SECONDS", _parse_optional_seconds, "3600", unit="seconds"
    )
    """Longest silence of a WebSocket, any byte counting; 0 has no limit."""
    websocket_max_lifetime: float = _setting(
        "WEBSOCKET_MAX_LIFETIME_SECONDS", _parse_optional_seconds, "86400", unit="seconds"
    )
    """Longest life of a WebSocket; 0 has no limit."""
    websocket_max_connections_per_client: int = _setting(
        "WEBSOCKET_MAX_CONNECTIONS_PER_CLIENT", _parse_count, "64"
    )
    """WebSockets of one client address at once; 0 has no limit."""
    max_inflight_per_sandbox: int = _setting(
        "SANDGATE_MAX_INFLIGHT_PER_SANDBOX", _parse_count, "256"
    )
    """Requests and WebSockets of one sandbox at once; 0 has no limit. One that hangs must not
    hold the connections of all others; Envoy lets 1,024 through to a whole cluster."""
    max_body_bytes: int = _setting("SANDGATE_MAX_BODY_BYTES", _parse_bytes, "0", unit="bytes")
    """Largest content of a request to a sandbox; 0 has no limit. It streams, so it costs the
    gateway nothing, and what a sandbox can take is the sandbox's to say."""
    max_connections: int = _setting("SANDGATE_MAX_CONNECTIONS", _parse_count, "0")
    """Client connections at once, at most half of the descriptors, which 0 takes: an exchange
    needs a second one for its sandbox."""

    access_log: int = _setting("SANDGATE_ACCESS_LOG", _parse_sampling, "on")
    """Which requests get a line in the log: on for all, off for none, 1/N for one of N."""

    @classmethod
    def from_environ(
        cls,
        environ: Mapping[str, str],
        *,
        command: Command,
        flags: Mapping[str, str] | None = None,
    ) -> "Config":
        """Read every setting; a flag, named like its variable, wins over the environment.

        Raises:
            BadConfig: with all faults, before anything listens.
        """
        flags = flags or {}
        faults = _name_faults(environ, flags, known={row.metadata["name"] for row in fields(cls)})
        values: dict[str, Any] = {}
        for row in fields(cls):
            name = row.metadata["name"]
            text = flags.get(name, environ.get(name, row.metadata["defaults"][command]))
            try:
                values[row.name] = row.metadata["parse"](text)
            except ValueError as error:
                shown = "" if name == "ROUTER_AUTH_TOKEN" else f" {text!r}"
                faults.append(f"{name}{shown} {error}")
        faults.extend(_conflicts(values, command))
        if faults:
            raise BadConfig(faults)
        config = cls(**values)
        if config.pod_ip == "trust" and config.effective_auth == "capability":
            raise BadConfig([_TRUST_UNDER_TOKENS])
        return config

    @property
    def effective_auth(self) -> Auth:
        """Who may use the relay, once the unset default is decided."""
        if self.auth is not None:
            return cast(Auth, self.auth)
        if self.keys or self.scoped_token_file:
            return "capability"
        if self.router_auth_token:
            return "shared"
        return "none" if self.allow_unauthenticated else "capability"

    @property
    def makes_own_key(self) -> bool:
        """Whether capabilities are signed with a key that lives and dies with this process."""
        given = self.keys or self.scoped_token_file
        return self.effective_auth == "capability" and not given

    @property
    def effective_pod_ip(self) -> Literal["ignore", "verify", "trust"]:
        """What X-Sandbox-Pod-IP does, once the unset default is decided.

        Behind `dns` clients of other routers count on it; a token of one sandbox must not
        reach another's address, though.
        """
        if self.pod_ip is not None:
            return cast(Literal["ignore", "verify", "trust"], self.pod_ip)
        trusting = self.registry == "dns" and self.effective_auth in {"shared", "none"}
        return "trust" if trusting else "ignore"


def _name_faults(
    environ: Mapping[str, str], flags: Mapping[str, str], *, known: AbstractSet[str]
) -> list[str]:
    """Return a fault for each name that is meant for us and does nothing here.

    A misspelt SANDGATE_AUTH must not open a gateway, so it is no warning. Names without our
    prefix may be anybody's.
    """
    faults = []
    ours = {
        name
        for name, text in environ.items()
        if name.startswith("SANDGATE_") and not _SERVICE_LINK.fullmatch(f"{name}={text}")
    }
    for name in sorted((ours - FOR_OTHERS | flags.keys()) - known):
        if name not in NOT_YET:
            faults.append(f"{name} is no setting of the gateway")
        elif flags.get(name, environ.get(name)):
            faults.append(f"{name} is not available in this version")
    return faults


def _conflicts(values: Mapping[str, Any], command: Command) -> list[str]:
    """Return the faults of settings that are right by themselves; `values` may lack wrong ones."""
    if _AUTH_ROWS - values.keys():
        return []
    auth, token, open_to_all = (
        values[row] for row in ("auth", "router_auth_token", "allow_unauthenticated")
    )
    by_token = values["keys"] or values["scoped_token_file"]
    if auth == "shared" and token is None:
        return ["SANDGATE_AUTH shared needs ROUTER_AUTH_TOKEN"]
    if auth is None and by_token and (token or open_to_all):
        named = "SANDGATE_KEYS" if values["keys"] else "SANDGATE_SCOPED_TOKEN_FILE"
        other = "ROUTER_AUTH_TOKEN" if token else "ALLOW_UNAUTHENTICATED_ROUTER"
        return [f"{named} and {other} say different things: choose one by SANDGATE_AUTH"]
    if by_token or auth in {"shared", "none"} or (auth is None and (token or open_to_all)):
        return []
    return _own_key_faults(values, command)


def _own_key_faults(values: Mapping[str, Any], command: Command) -> list[str]:
    """Return why a key of our own does not do where no credential is configured."""
    stated = values["auth"] == "capability"
    if command == "router":
        if stated:
            return ["SANDGATE_AUTH capability needs SANDGATE_KEYS or SANDGATE_SCOPED_TOKEN_FILE"]
        return [f"no credential is set: {_GIVE_ONE}"]
    listen: ListenAddress = values["listen"]
    if not stated and not listen.is_loopback:
        return [f"SANDGATE_LISTEN {listen.host} is no loopback address: {_GIVE_ONE}"]
    if values.get("registry", "local") != "local":
        fault = f"SANDGATE_REGISTRY {values['registry']} makes no claims, so nobody gets a token"
        return [f"{fault}: {_GIVE_ONE}"]
    return []
