"""X-Sandbox-Pod-IP: ignored, verified or trusted."""

import ipaddress

import pytest

from sandgate_router.addresses import AddressPolicy
from sandgate_router.errors import GatewayError, InvalidPodIp, NotAllowedHere
from sandgate_router.names import Label, Port
from sandgate_router.pod_ip import MAX_ENDPOINTS, PodIp, PodIpMode
from sandgate_router.registry.base import Endpoint
from sandgate_router.target import Routing, Target

POLICY = AddressPolicy((ipaddress.ip_network("10.0.0.0/8"),), is_ours=lambda _: False)


def routing(pod_ip: str | None, sandbox: str = "sb", port: int = 8888) -> Routing:
    target = Target(Label(sandbox), Label("default"), Port(port))
    return Routing(target, (target.namespace, target.sandbox), uid=None, pod_ip=pod_ip)


def at(host: str) -> Endpoint:
    return Endpoint(uid=None, name="default/sb", host=host, port=8888)


@pytest.mark.parametrize("text", ["10.0.0.7", "8.8.8.8", "127.0.0.1", "nonsense", "fe80::1%eth0"])
def test_ignored_it_is_not_even_looked_at(text: str) -> None:
    pod_ip = PodIp("ignore", POLICY)
    assert pod_ip.endpoint_for(routing(text)) is None
    pod_ip.verify(routing(text), at("10.0.0.9"))


@pytest.mark.parametrize("mode", ["ignore", "verify", "trust"])
def test_without_it_the_registry_is_asked(mode: PodIpMode) -> None:
    pod_ip = PodIp(mode, POLICY)
    assert pod_ip.endpoint_for(routing(None)) is None
    pod_ip.verify(routing(None), at("10.0.0.9"))


REFUSED: dict[str, tuple[str, type[GatewayError]]] = {
    "malformed": ("10.0.0", InvalidPodIp),
    "name": ("localhost", InvalidPodIp),
    "not ASCII": ("\xff", InvalidPodIp),
    "zone": ("fe80::1%eth0", InvalidPodIp),
    "loopback": ("127.0.0.1", InvalidPodIp),
    "link-local": ("169.254.169.254", InvalidPodIp),
    "multicast": ("224.0.0.1", InvalidPodIp),
    "unspecified": ("::", InvalidPodIp),
    "IPv4-mapped": ("::ffff:10.0.0.7", InvalidPodIp),
    "outside": ("8.8.8.8", NotAllowedHere),
    "outside, IPv6": ("fd00::1", NotAllowedHere),
}


@pytest.mark.parametrize("mode", ["verify", "trust"])
@pytest.mark.parametrize(("text", "refusal"), REFUSED.values(), ids=REFUSED.keys())
def test_an_address_that_is_not_to_be_dialled_is_refused(
    mode: PodIpMode, text: str, refusal: type[GatewayError]
) -> None:
    with pytest.raises(refusal):
        PodIp(mode, POLICY).endpoint_for(routing(text))


def test_the_refusals_have_the_codes_that_clients_know() -> None:
    with pytest.raises(InvalidPodIp) as malformed:
        PodIp("trust", POLICY).endpoint_for(routing("127.0.0.1"))
    assert (malformed.value.status, malformed.value.code) == (400, "invalid_pod_ip")
    assert malformed.value.message == "Invalid target IP address."
    with pytest.raises(NotAllowedHere) as outside:
        PodIp("trust", POLICY).endpoint_for(routing("8.8.8.8"))
    assert outside.value.status == 403
    assert "SANDGATE_UPSTREAM_NETWORKS" in outside.value.message


def test_verified_it_must_be_the_address_of_the_registry() -> None:
    pod_ip = PodIp("verify", POLICY)
    assert pod_ip.endpoint_for(routing("10.0.0.7")) is None
    pod_ip.verify(routing("10.0.0.7"), at("10.0.0.7"))
    with pytest.raises(NotAllowedHere, match="not the address of this sandbox"):
        pod_ip.verify(routing("10.0.0.7"), at("10.0.0.8"))


def test_verified_it_is_compared_as_a_number() -> None:
    policy = AddressPolicy((ipaddress.ip_network("fd00::/8"),), is_ours=lambda _: False)
    PodIp("verify", policy).verify(routing("FD00:0:0::7"), at("fd00::7"))


def test_verified_it_is_never_that_of_a_unix_socket() -> None:
    endpoint = Endpoint(uid="u", name="default/sb", path="/run/sb.sock")
    with pytest.raises(NotAllowedHere):
        PodIp("verify", POLICY).verify(routing("10.0.0.7"), endpoint)


def test_trusted_it_is_dialled_on_the_port_that_was_asked_for() -> None:
    endpoint = PodIp("trust", POLICY).endpoint_for(routing("10.0.0.7", port=3000))
    assert endpoint is not None
    assert (endpoint.host, endpoint.port, endpoint.uid) == ("10.0.0.7", 3000, None)
    assert endpoint.name == "default/sb"


def test_trusted_it_has_one_endpoint_for_each_sandbox_port_and_address() -> None:
    pod_ip = PodIp("trust", POLICY)
    first = pod_ip.endpoint_for(routing("10.0.0.7"))
    assert pod_ip.endpoint_for(routing("10.0.0.7")) is first
    others = [
        pod_ip.endpoint_for(routing("10.0.0.8")),
        pod_ip.endpoint_for(routing("10.0.0.7", port=80)),
        # The same address under another name may be another sandbox by now.
        pod_ip.endpoint_for(routing("10.0.0.7", sandbox="other")),
    ]
    assert first not in others
    assert repr(pod_ip) == "<PodIp trust 4 endpoints>"


def test_trusted_addresses_are_remembered_within_a_bound_the_oldest_use_goes() -> None:
    pod_ip = PodIp("trust", POLICY)
    used, unused = (pod_ip.endpoint_for(routing(text)) for text in ("10.0.0.1", "10.0.0.2"))
    for number in range(MAX_ENDPOINTS - 1):
        assert pod_ip.endpoint_for(routing("10.0.0.1")) is used
        pod_ip.endpoint_for(routing("10.0.0.3", sandbox=f"sb-{number}"))
    assert repr(pod_ip) == f"<PodIp trust {MAX_ENDPOINTS} endpoints>"
    assert pod_ip.endpoint_for(routing("10.0.0.1")) is used
    assert pod_ip.endpoint_for(routing("10.0.0.2")) is not unused
