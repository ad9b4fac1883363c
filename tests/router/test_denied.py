"""Names that nobody reaches."""

import pytest

from sandgate_router.config import Config
from sandgate_router.denied import Denied
from sandgate_router.errors import NotAllowedHere
from sandgate_router.names import Label, Port
from sandgate_router.target import Target


def is_denied(name: str, *patterns: str) -> bool:
    namespace, sandbox = name.split("/")
    try:
        Denied(patterns).check(Target(Label(sandbox), Label(namespace), Port(8888)))
    except NotAllowedHere:
        return True
    return False


def test_a_refusal_names_the_setting_and_nothing_that_only_a_look_up_would_know() -> None:
    with pytest.raises(NotAllowedHere) as refusal:
        Denied(["a/*"]).check(Target(Label("b"), Label("a"), Port(8888)))
    assert (refusal.value.status, refusal.value.code) == (403, "not_allowed_here")
    assert refusal.value.message == "a/b is not reached through this gateway (SANDGATE_DENIED)."


@pytest.mark.parametrize(
    "name",
    [
        *("default/kubernetes", "kube-system/kube-dns", "kube-system/a", "kube-public/b"),
        *("kube-node-lease/c", "agents/sandbox-router-svc", "default/sandbox-router-svc"),
    ],
)
def test_the_clusters_own_services_and_the_gateways_are_refused_by_default(name: str) -> None:
    config = Config.from_environ({}, command="up")
    assert is_denied(name, *config.denied)


@pytest.mark.parametrize(
    "name",
    [
        *("default/sb-1", "agents/kubernetes", "kube-systems/a", "my-kube-system/a"),
        *("default/kubernetes-1", "default/sandbox-router-svc2"),
    ],
)
def test_every_other_name_may_be_a_sandbox(name: str) -> None:
    config = Config.from_environ({}, command="up")
    assert not is_denied(name, *config.denied)


@pytest.mark.parametrize(
    ("pattern", "denied", "let_through"),
    [
        ("*/db", ["a/db", "b/db"], ["a/db2", "a/mydb"]),
        ("prod-*/*", ["prod-1/a", "prod-/a"], ["prod/a", "my-prod-1/a"]),
        ("a/b*d", ["a/bd", "a/bcd", "a/b-x-d"], ["a/b", "a/bc", "ab/d"]),
        ("*/*", ["a/b"], []),
        ("a/b-c", ["a/b-c"], ["a/bxc", "a/b"]),
    ],
)
def test_a_star_stands_for_any_characters_of_a_label(
    pattern: str, denied: list[str], let_through: list[str]
) -> None:
    assert all(is_denied(name, pattern) for name in denied)
    assert not any(is_denied(name, pattern) for name in let_through)


def test_without_patterns_nothing_is_refused() -> None:
    assert not is_denied("kube-system/kube-dns")
    assert repr(Denied(())) == "<Denied nothing>"
