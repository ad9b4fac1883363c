"""The table of sandboxes: what late, doubled and disordered news may change, and what not."""

import json
from typing import Any

import msgspec
import pytest
from support.dns_gateway import LoopbackPolicy
from support.fake_kube.objects import CLAIM_UID_LABEL, WARM_LABEL, condition

from sandgate_router.names import DEFAULT_PORT, Label, Port
from sandgate_router.registry.base import Endpoint
from sandgate_router.registry.kubernetes.table import MAX_PORTS, SandboxTable

KEY = (Label("default"), Label("sb-1"))


def item(
    uid: str = "u-1",
    version: int = 10,
    *,
    name: str = "sb-1",
    address: str | None = "127.1.0.1",
    ready: bool = True,
    labels: dict[str, str] | None = None,
    claim: str = "",
    **spec: Any,
) -> bytes:
    """Return a Sandbox as the API writes it."""
    status: dict[str, Any] = {
        "conditions": [
            condition("Ready", "True", "DependenciesReady")
            if ready
            else condition("Ready", "False", "DependenciesNotReady")
        ]
    }
    if address is not None:
        status["podIPs"] = [address] if isinstance(address, str) else address
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": "default",
        "uid": uid,
        "resourceVersion": str(version),
        "labels": labels or {},
    }
    if claim:
        metadata["ownerReferences"] = [{"kind": "SandboxClaim", "name": "c", "uid": claim}]
        metadata["labels"] = {CLAIM_UID_LABEL: claim}
    pod = {"spec": {"containers": []} | spec.pop("pod", {})}
    whole = {"metadata": metadata, "spec": {"podTemplate": pod} | spec, "status": status}
    return json.dumps(whole).encode()


class Watched:
    """A table, and the endpoints that have left it."""

    def __init__(self) -> None:
        self.table = SandboxTable(LoopbackPolicy())
        self.gone: list[Endpoint] = []
        self.table.on_gone(self.gone.append)

    def tell(self, kind: str, content: bytes) -> None:
        self.table.apply(kind, msgspec.Raw(content))

    def open(self, name: str = "sb-1", port: int = DEFAULT_PORT) -> Endpoint | None:
        entry = self.table.get((Label("default"), Label(name)))
        if entry is None or entry.standing != "ready":
            return None
        return self.table.open(entry, Port(port))

    def host(self, name: str = "sb-1") -> str | None:
        endpoint = self.open(name)
        return None if endpoint is None else endpoint.host


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_a_sandbox_that_is_ready_has_one_endpoint_for_each_port(watched: Watched) -> None:
    watched.tell("ADDED", item())
    first = watched.open()
    assert first is not None
    assert (first.uid, first.name, first.host, first.port) == (
        "u-1",
        "default/sb-1",
        "127.1.0.1",
        8888,
    )
    assert watched.open() is first
    assert watched.open(port=3000) is not first


@pytest.mark.parametrize(
    ("content", "standing"),
    [
        (item(labels={WARM_LABEL: "1a2b3c4d"}), "unclaimed"),
        (item(ready=False), "starting"),
        (item(address=None), "starting"),
        (item(operatingMode="Suspended"), "suspended"),
        (item(replicas=0), "suspended"),
        (item(pod={"hostNetwork": True}), "prohibited"),
        (item(address="127.9.0.1"), "prohibited"),
        (item(address="169.254.169.254"), "prohibited"),
        (item(address="fe80::1%eth0"), "prohibited"),
    ],
)
def test_what_is_not_ready_for_anybody_is_not_reached(
    watched: Watched, content: bytes, standing: str
) -> None:
    watched.tell("ADDED", content)
    entry = watched.table.get(KEY)
    assert entry is not None
    assert entry.standing == standing
    assert watched.table.endpoint(KEY, DEFAULT_PORT) is None


def test_one_address_that_may_not_be_dialled_spoils_all(watched: Watched) -> None:
    watched.tell("ADDED", item(address=["127.1.0.1", "169.254.169.254"]))  # type: ignore[arg-type]
    assert watched.host() is None


def test_an_older_version_changes_nothing(watched: Watched) -> None:
    watched.tell("MODIFIED", item(version=12, address="127.1.0.2"))
    watched.tell("MODIFIED", item(version=11, address="127.1.0.1"))
    assert watched.host() == "127.1.0.2"


def test_the_same_event_twice_changes_nothing(watched: Watched) -> None:
    watched.tell("ADDED", item())
    endpoint = watched.open()
    watched.tell("ADDED", item())
    assert watched.open() is endpoint
    assert watched.gone == []


def test_the_late_end_of_an_old_object_leaves_the_new_one(watched: Watched) -> None:
    watched.tell("ADDED", item("u-1", 10))
    watched.tell("ADDED", item("u-2", 20, address="127.1.0.2"))
    watched.tell("DELETED", item("u-1", 19))
    assert watched.host() == "127.1.0.2"


def test_a_late_change_of_an_old_object_leaves_the_new_one(watched: Watched) -> None:
    watched.tell("ADDED", item("u-2", 20, address="127.1.0.2"))
    watched.tell("MODIFIED", item("u-1", 12))
    endpoint = watched.open()
    assert endpoint is not None
    assert endpoint.uid == "u-2"


def test_what_has_ended_never_comes_back(watched: Watched) -> None:
    watched.tell("ADDED", item())
    watched.tell("DELETED", item(version=11))
    watched.tell("MODIFIED", item(version=12))
    assert watched.table.get(KEY) is None


def test_a_new_generation_ends_the_connections_of_the_old_one(watched: Watched) -> None:
    watched.tell("ADDED", item("u-1", 10))
    old = watched.open()
    watched.tell("ADDED", item("u-2", 20))
    assert watched.gone == [old]
    new = watched.open()
    assert new is not None
    assert new.uid == "u-2"


@pytest.mark.parametrize(
    "content",
    [
        item(version=11, operatingMode="Suspended"),
        item(version=11, address="127.1.0.2"),
        item(version=11, address=None),
    ],
)
def test_a_change_of_address_ends_the_connections_to_the_old_one(
    watched: Watched, content: bytes
) -> None:
    watched.tell("ADDED", item())
    old = watched.open()
    watched.tell("MODIFIED", content)
    assert watched.gone == [old]


def test_a_probe_that_fails_holds_requests_back_and_ends_no_connection(watched: Watched) -> None:
    watched.tell("ADDED", item())
    endpoint = watched.open()
    watched.tell("MODIFIED", item(version=11, ready=False))
    assert watched.table.endpoint(KEY, DEFAULT_PORT) is None
    assert watched.gone == []
    watched.tell("MODIFIED", item(version=12))
    assert watched.open() is endpoint


def test_an_address_belongs_to_who_gained_it_last(watched: Watched) -> None:
    watched.tell("ADDED", item("u-1", 10, name="sb-1"))
    old = watched.open("sb-1")
    heard: list[str | None] = []
    watched.table.on_gone(lambda _: heard.append(watched.host("sb-1")))
    watched.tell("ADDED", item("u-2", 20, name="sb-2"))
    assert watched.gone == [old]
    assert heard == [None]  # already when its end is told
    assert (watched.host("sb-1"), watched.host("sb-2")) == (None, "127.1.0.1")
    watched.tell("MODIFIED", item("u-1", 30, name="sb-1"))  # changed elsewhere, address long lost
    assert watched.host("sb-2") == "127.1.0.1"


def test_late_news_do_not_take_an_address_from_its_new_owner(watched: Watched) -> None:
    watched.tell("ADDED", item("u-2", 20, name="sb-2"))
    watched.tell("ADDED", item("u-1", 10, name="sb-1"))
    assert (watched.host("sb-1"), watched.host("sb-2")) == (None, "127.1.0.1")


def test_a_list_ends_what_is_not_in_it_but_not_what_is_newer(watched: Watched) -> None:
    watched.tell("ADDED", item("u-1", 10, name="sb-1", address="127.1.0.1"))
    watched.tell("ADDED", item("u-2", 11, name="sb-2", address="127.1.0.2"))
    watched.tell("ADDED", item("u-3", 30, name="sb-3", address="127.1.0.3"))
    watched.table.replace(
        [item("u-2", 11, name="sb-2", address="127.1.0.2")], version="20", namespace=""
    )
    assert [watched.host(name) for name in ("sb-1", "sb-2", "sb-3")] == [
        None,
        "127.1.0.2",
        "127.1.0.3",
    ]


def test_a_list_of_one_namespace_says_nothing_of_others(watched: Watched) -> None:
    watched.tell("ADDED", item())
    watched.table.replace([], version="20", namespace="other")
    assert watched.host() == "127.1.0.1"


def test_what_is_no_sandbox_is_left_out_and_harms_nobody(watched: Watched) -> None:
    watched.table.replace([b'{"metadata": {}}', item()], version="20", namespace="")
    watched.tell("ADDED", b'{"metadata": {"name": "A_b", "uid": "x", "namespace": "default"}}')
    assert watched.host() == "127.1.0.1"
    assert len(watched.table) == 1


def test_whoever_walks_the_ports_keeps_few_of_them(watched: Watched) -> None:
    watched.tell("ADDED", item())
    usual = watched.open()
    for port in range(1, 1000):
        watched.open(port=port)
    assert watched.open() is usual
    assert len(watched.gone) == 1000 - MAX_PORTS
