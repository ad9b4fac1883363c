"""What a caller may ask for, member by member."""

from typing import Any

import pytest

from sandgate_router.control.new_claim import (
    MAX_LABELS,
    MAX_PORTS,
    parse_new_claim,
    parse_renewal,
)
from sandgate_router.errors import InvalidRequest
from sandgate_router.names import Label, Port
from sandgate_router.registry.base import ClaimRequest

LABELS = [
    {},
    {"app": "web"},
    {"app": ""},
    {"App_1.x-y": "A_1.x-y"},
    {"example.com/app": "web"},
    {"a" * 63: "b" * 63},
    {"a" * 59 + "." + "b" * 63 + "." + "c" * 63 + "." + "d" * 63 + ".e/app": "1"},
    {"notkubernetes.io/app": "1"},
    {"kubernetes.io.example.com/app": "1"},
    {"kubernetes.io": "a-name-and-no-prefix"},
]
WRONG_LABELS: list[dict[str, Any]] = [
    {"": "a"},
    {"/app": "a"},
    {"a/": "a"},
    {"a/b/c": "a"},
    {"-a": "a"},
    {"a-": "a"},
    {"a b": "a"},
    {"a" * 64: "a"},
    {"Example.com/app": "a"},
    {"example..com/app": "a"},
    {"-example.com/app": "a"},
    {".".join(["a" * 63] * 4) + "/app": "a"},
    {"a" * 10_240: "a"},
    {"app\n": "a"},
    {"café": "a"},
    {"app": "a b"},
    {"app": "-a"},
    {"app": "a\n"},
    {"app": "\n"},
    {"app": "a" * 64},
    {"app": "a" * 10_240},
    {"app": "\ud800"},
    {"\ud800": "a"},
    {"app": 1},
    {"app": None},
]
RESERVED_KEYS = [
    "kubernetes.io/name",
    "app.kubernetes.io/name",
    "k8s.io/name",
    "node.k8s.io/name",
    "agents.x-k8s.io/sandbox-name-hash",
    "extensions.agents.x-k8s.io/pool",
    "sandgate.dev/claim",
    "internal.sandgate.dev/claim",
]
WRONG_NAMES: list[object] = [
    "",
    "A",
    "a.b",
    "a/b",
    "../a",
    "-a",
    "a-",
    "a\n",
    "a" * 64,
    "a" * 10_240,
    "café",
    "\ud800",
    1,
    [],
    {},
    True,
]
WRONG_PORTS: list[object] = [
    [],
    [0],
    [-1],
    [65536],
    [10**30],
    [8888, 8888],
    [8888.5],
    ["8888"],
    [True],
    [None],
    [[8888]],
    [*range(1, MAX_PORTS + 2)],
    {},
]
WRONG_SPANS: list[object] = [0, -1, 0.0, -0.5, 604800.5, 1e9, float("inf"), "60", True, [], 10**30]


def test_a_pool_is_enough() -> None:
    assert parse_new_claim({"pool": "python"}) == ClaimRequest(
        pool="python",
        namespace=Label("default"),
        name=None,
        lease_seconds=None,
        labels={},
        wait_seconds=30.0,
        on_empty="wait",
    )


def test_everything_can_be_said() -> None:
    body = {
        "pool": "python",
        "namespace": "team",
        "name": "build-7",
        "lease_seconds": 604800,
        "idle_seconds": 0.5,
        "ports": [3000],
        "labels": {"app": "web"},
        "wait_seconds": 0,
        "on_empty": "cold",
    }
    assert parse_new_claim(body, caller="ci") == ClaimRequest(
        pool="python",
        namespace=Label("team"),
        name=Label("build-7"),
        lease_seconds=604800.0,
        idle_seconds=0.5,
        ports=(Port(3000),),
        caller="ci",
        labels={"app": "web"},
        wait_seconds=0.0,
        on_empty="cold",
    )


@pytest.mark.parametrize("member", ["name", "lease_seconds", "idle_seconds", "ports"])
def test_null_leaves_a_member_to_the_pool(member: str) -> None:
    assert parse_new_claim({"pool": "python", member: None}) == parse_new_claim({"pool": "python"})


@pytest.mark.parametrize("member", ["pool", "namespace", "labels", "wait_seconds", "on_empty"])
def test_null_is_no_value_for_a_member_with_a_default_of_its_own(member: str) -> None:
    with pytest.raises(InvalidRequest, match=rf"^{member}"):
        parse_new_claim({"pool": "python", member: None})


@pytest.mark.parametrize("member", ["pool", "namespace", "name"])
@pytest.mark.parametrize("value", WRONG_NAMES)
def test_a_pool_a_namespace_and_a_name_are_labels(member: str, value: object) -> None:
    with pytest.raises(InvalidRequest, match=rf"^{member}"):
        parse_new_claim({"pool": "python", member: value})


@pytest.mark.parametrize("value", WRONG_SPANS)
def test_a_lease_is_above_0_and_at_most_a_week(value: object) -> None:
    with pytest.raises(InvalidRequest, match=r"^lease_seconds"):
        parse_new_claim({"pool": "python", "lease_seconds": value})


@pytest.mark.parametrize("value", WRONG_SPANS)
def test_idle_seconds_are_above_0_and_at_most_a_week(value: object) -> None:
    with pytest.raises(InvalidRequest, match=r"^idle_seconds"):
        parse_new_claim({"pool": "python", "idle_seconds": value})


@pytest.mark.parametrize("value", WRONG_SPANS)
def test_a_renewal_is_for_above_0_seconds_and_at_most_a_week(value: object) -> None:
    with pytest.raises(InvalidRequest, match=r"^lease_seconds"):
        parse_renewal({"lease_seconds": value})


@pytest.mark.parametrize(
    ("body", "lease"), [({}, None), ({"lease_seconds": None}, None), ({"lease_seconds": 60}, 60.0)]
)
def test_a_renewal_may_leave_the_lease_as_it_was(
    body: dict[str, object], lease: float | None
) -> None:
    assert parse_renewal(body) == lease


@pytest.mark.parametrize("body", [None, [], "60", {"idle_seconds": 60}, {"ports": [1]}])
def test_a_renewal_changes_nothing_but_the_lease(body: object) -> None:
    with pytest.raises(InvalidRequest):
        parse_renewal(body)


@pytest.mark.parametrize("value", WRONG_PORTS)
def test_ports_are_1_to_64_different_ports(value: object) -> None:
    with pytest.raises(InvalidRequest, match=r"^ports") as caught:
        parse_new_claim({"pool": "python", "ports": value})
    assert len(caught.value.message) < 200


def test_ports_are_kept_ascending() -> None:
    assert parse_new_claim({"pool": "python", "ports": [65535, 1, 8888]}).ports == (1, 8888, 65535)
    most = [*range(1, MAX_PORTS + 1)]
    assert parse_new_claim({"pool": "python", "ports": most[::-1]}).ports == tuple(most)


@pytest.mark.parametrize(("member", "value"), [("idle_seconds", "600"), ("ports", 8888)])
def test_a_wrong_type_is_told_all_the_same(member: str, value: object) -> None:
    with pytest.raises(InvalidRequest, match=rf"^{member}: expected"):
        parse_new_claim({"pool": "python", member: value})


@pytest.mark.parametrize("value", [-0.1, 300.1, float("inf"), "0", False])
def test_a_wait_is_0_to_300_seconds(value: object) -> None:
    with pytest.raises(InvalidRequest, match=r"^wait_seconds"):
        parse_new_claim({"pool": "python", "wait_seconds": value})


@pytest.mark.parametrize("value", ["", "WAIT", "never", 1])
def test_on_empty_is_one_of_three_words(value: object) -> None:
    with pytest.raises(InvalidRequest, match=r"^on_empty"):
        parse_new_claim({"pool": "python", "on_empty": value})


@pytest.mark.parametrize("labels", LABELS)
def test_labels_are_those_of_kubernetes(labels: dict[str, str]) -> None:
    assert parse_new_claim({"pool": "python", "labels": labels}).labels == labels


@pytest.mark.parametrize("labels", WRONG_LABELS)
def test_labels_that_kubernetes_would_refuse_are_refused(labels: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=r"^labels") as caught:
        parse_new_claim({"pool": "python", "labels": labels})
    assert len(caught.value.message) < 300


@pytest.mark.parametrize("key", RESERVED_KEYS)
def test_a_label_that_controllers_act_on_may_not_be_set(key: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^labels key .* has a reserved prefix"):
        parse_new_claim({"pool": "python", "labels": {key: "a"}})


def test_there_are_not_too_many_labels() -> None:
    labels = {f"l{number}": "a" for number in range(MAX_LABELS + 1)}
    with pytest.raises(InvalidRequest, match=r"^labels has 65 members"):
        parse_new_claim({"pool": "python", "labels": labels})


@pytest.mark.parametrize("member", ["image", "isolation", "env", "memory_bytes", "Pool"])
def test_a_claim_names_a_pool_and_never_an_image_an_isolation_or_a_limit(member: str) -> None:
    with pytest.raises(InvalidRequest, match=rf"^'{member}' is unknown; allowed are pool, "):
        parse_new_claim({"pool": "python", member: "x"})
