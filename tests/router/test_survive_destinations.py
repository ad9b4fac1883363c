"""What may be thrown at the gateway to have it dial what it must not.

R20 to R23: X-Sandbox-Pod-IP, names of the cluster's own, and guesses. Nothing is asked of DNS
and nothing is dialled for any of them. The row is in the name of the test or of the case.
"""

from pathlib import Path

import pytest
from support.dns_gateway import dns_gateway
from support.raw_client import Answer, connect, request

from sandgate_router.config import Config
from sandgate_router.pod_ip import PodIpMode

DENIED = Config.from_environ({}, command="up").denied


async def send(port: int, *lines: str, sandbox: str = "sb", asked: int | None = None) -> Answer:
    if asked is not None:
        lines = (*lines, f"X-Sandbox-Port: {asked}")
    async with connect(port) as client:
        more = "".join(f"{line}\r\n" for line in lines)
        await client.send(request(sandbox=sandbox, more=more))
        return await client.read_answer()


def assert_refused(answer: Answer, status: int, code: str) -> None:
    assert (answer.status, answer.code) == (status, code)
    assert (answer.json["reached"], answer.json["retry_safe"]) == ("no", True)


async def test_r20_trusted_the_address_is_dialled_and_no_name_asked_for(tmp_path: Path) -> None:
    async with dns_gateway(tmp_path, pod_ip="trust") as here:
        for _ in range(2):
            answer = await send(here.port, "X-Sandbox-Pod-IP: 127.0.0.1", asked=here.sandbox.port)
            assert answer.body == b"ok"
        assert here.dns.queries == []
        assert len(here.sandbox.sides) == 1  # the connection was kept, and used again
        for head in here.sandbox.heads:
            assert b"Pod-IP" not in head
            assert b"Host: sb.default.svc.cluster.local:" in head


async def test_r20_verified_it_must_be_what_dns_says(tmp_path: Path) -> None:
    async with dns_gateway(tmp_path, pod_ip="verify") as here:
        here.name("sb", "127.0.0.1")
        port = here.sandbox.port
        for _ in range(2):  # while nothing is known, and when it is
            answer = await send(here.port, "X-Sandbox-Pod-IP: 127.0.0.2", asked=port)
            assert_refused(answer, 403, "not_allowed_here")
            assert answer.json["detail"] == "X-Sandbox-Pod-IP is not the address of this sandbox."
            assert here.sandbox.sides == []
        assert (await send(here.port, "X-Sandbox-Pod-IP: 127.0.0.1", asked=port)).status == 200
        assert (await send(here.port, asked=port)).status == 200


@pytest.mark.parametrize("text", ["127.0.0.2", "8.8.8.8", "nonsense", "fe80::1%eth0"])
async def test_r20_ignored_it_is_not_even_looked_at(tmp_path: Path, text: str) -> None:
    async with dns_gateway(tmp_path, pod_ip="ignore") as here:
        here.name("sb", "127.0.0.1")
        answer = await send(here.port, f"X-Sandbox-Pod-IP: {text}", asked=here.sandbox.port)
        assert answer.status == 200


async def test_r20_an_empty_one_is_none(tmp_path: Path) -> None:
    async with dns_gateway(tmp_path, pod_ip="trust") as here:
        here.name("sb", "127.0.0.1")
        answer = await send(here.port, "X-Sandbox-Pod-IP:", asked=here.sandbox.port)
        assert answer.status == 200
        assert here.dns.asked("sb.default.svc.cluster.local.") == 1


NEVER = {
    "R20 malformed": "10.0.0",
    "R20 a name": "localhost",
    "R20 a port": "10.0.0.7:80",
    "R20 two": "10.0.0.7, 10.0.0.8",
    "R20 not ASCII": "\xff",
    "R21 metadata": "169.254.169.254",
    "R21 IPv4-mapped metadata": "::ffff:169.254.169.254",
    "R21 IPv4-mapped loopback": "0:0:0:0:0:ffff:7f00:1",
    "R21 zone": "fe80::1%eth0",
    "R21 link-local": "fe80::1",
    "R21 metadata of Alibaba": "100.100.100.200",
    "R21 metadata of AWS": "fd00:ec2::254",
    "R21 unspecified": "0.0.0.0",
    "R21 loopback, IPv6": "::1",
    "R21 multicast": "224.0.0.1",
}


@pytest.mark.parametrize("mode", ["verify", "trust"])
@pytest.mark.parametrize("text", NEVER.values(), ids=NEVER.keys())
async def test_an_address_that_is_never_a_sandboxes_is_400(
    tmp_path: Path, text: str, mode: PodIpMode
) -> None:
    async with dns_gateway(tmp_path, pod_ip=mode) as here:
        answer = await send(here.port, f"X-Sandbox-Pod-IP: {text}")
        assert_refused(answer, 400, "invalid_pod_ip")
        assert answer.json["detail"] == "Invalid target IP address."
        here.assert_untouched()


@pytest.mark.parametrize("mode", ["verify", "trust"])
@pytest.mark.parametrize("text", ["127.9.0.1", "8.8.8.8", "2001:db8::1", "64:ff9b::808:808"])
async def test_r21_an_address_outside_the_networks_is_403(
    tmp_path: Path, text: str, mode: PodIpMode
) -> None:
    async with dns_gateway(tmp_path, pod_ip=mode) as here:
        answer = await send(here.port, f"X-Sandbox-Pod-IP: {text}")
        assert_refused(answer, 403, "not_allowed_here")
        here.assert_untouched()


async def test_r20_a_stranger_learns_nothing_by_an_address(tmp_path: Path) -> None:
    async with dns_gateway(tmp_path, pod_ip="trust", ROUTER_AUTH_TOKEN="secret") as here:
        bodies = set()
        for text in ("10.0.0", "127.0.0.1", "8.8.8.8", "169.254.169.254"):
            answer = await send(here.port, f"X-Sandbox-Pod-IP: {text}")
            assert_refused(answer, 401, "unauthenticated")
            bodies.add(answer.body)
        assert len(bodies) == 1
        here.assert_untouched()


OWN_NAMES = {
    "R22 the API server": ("kubernetes", "default"),
    "R22 the cluster's DNS": ("kube-dns", "kube-system"),
    "R22 anything else there": ("etcd", "kube-system"),
    "R22 public": ("cluster-info", "kube-public"),
    "R22 the gateway's own Service": ("sandbox-router-svc", "agents"),
}


@pytest.mark.parametrize("more", [(), ("X-Sandbox-Pod-IP: 127.0.0.1",)], ids=["name", "Pod-IP"])
@pytest.mark.parametrize(("sandbox", "namespace"), OWN_NAMES.values(), ids=OWN_NAMES.keys())
async def test_a_name_of_the_clusters_own_is_403_before_any_question(
    tmp_path: Path, sandbox: str, namespace: str, more: tuple[str, ...]
) -> None:
    async with dns_gateway(tmp_path, pod_ip="trust", denied=DENIED) as here:
        here.name(sandbox, "127.0.0.1", namespace=namespace)
        lines = (f"X-Sandbox-Namespace: {namespace}", *more)
        answer = await send(here.port, *lines, sandbox=sandbox, asked=here.sandbox.port)
        assert_refused(answer, 403, "not_allowed_here")
        assert f"{namespace}/{sandbox}" in answer.json["detail"]
        here.assert_untouched()


async def test_r22_a_stranger_does_not_learn_what_is_denied(tmp_path: Path) -> None:
    async with dns_gateway(tmp_path, denied=DENIED, ROUTER_AUTH_TOKEN="secret") as here:
        answer = await send(here.port, sandbox="kubernetes")
        assert_refused(answer, 401, "unauthenticated")
        here.assert_untouched()


GUESSES = 1000
"""1 % of the row's 10^5."""


@pytest.mark.parametrize(
    "credential", [(), ("Authorization: Bearer wrong",)], ids=["R23 none", "R23 wrong"]
)
async def test_guesses_of_names_cost_no_question_and_no_dial_and_teach_nothing(
    tmp_path: Path, credential: tuple[str, ...]
) -> None:
    async with dns_gateway(tmp_path, ROUTER_AUTH_TOKEN="secret") as here:
        here.name("sb", "127.0.0.1")
        bodies = set()
        for number in range(GUESSES):
            sandbox = "sb" if number % 2 else f"sb-{number}"
            answer = await send(here.port, *credential, sandbox=sandbox)
            assert_refused(answer, 401, "unauthenticated")
            bodies.add(answer.body)
        assert len(bodies) == 1
        here.assert_untouched()
