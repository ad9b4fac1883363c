import pytest

from sandgate_router.errors import NotAllowedHere
from sandgate_router.names import DEFAULT_PORT, Port
from sandgate_router.registry.local.endpoints import MAX_PORTS, SandboxEndpoints


def endpoints(relay: str | None = "/run/ports.sock") -> SandboxEndpoints:
    return SandboxEndpoints(name="default/a", uid="u", http="/run/http.sock", relay=relay)


def test_the_runtimes_port_is_its_own_socket_and_others_go_through_the_relay() -> None:
    ports = endpoints()
    http, _ = ports.get(DEFAULT_PORT)
    other, _ = ports.get(Port(3000))
    assert (http.path, http.relay_port, http.uid, http.name) == (
        *("/run/http.sock", None, "u", "default/a"),
    )
    assert (other.path, other.relay_port) == ("/run/ports.sock", 3000)
    assert (http.host, http.port, other.host, other.port) == ("", 0, "", 0)


def test_each_port_keeps_one_endpoint() -> None:
    ports = endpoints()
    assert ports.get(Port(3000))[0] is ports.get(Port(3000))[0]
    assert ports.get(Port(3000))[0] is not ports.get(Port(3001))[0]
    assert list(ports) == [ports.http, ports.get(Port(3000))[0], ports.get(Port(3001))[0]]


def test_a_client_that_tries_every_port_makes_the_oldest_leave() -> None:
    ports = endpoints()
    first, _ = ports.get(Port(1))
    for number in range(2, MAX_PORTS + 1):
        assert ports.get(Port(number))[1] is None
    assert ports.get(Port(MAX_PORTS + 1))[1] is first
    assert len(list(ports)) == MAX_PORTS + 1


def test_without_a_relay_only_the_runtimes_port_is_served() -> None:
    ports = endpoints(relay=None)
    assert ports.get(DEFAULT_PORT)[0] is ports.http
    with pytest.raises(NotAllowedHere, match="Port 3000 is not served: un-isolated sandboxes"):
        ports.get(Port(3000))
