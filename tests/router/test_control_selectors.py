"""Label selectors, in both of Kubernetes' forms."""

import time

import pytest

from sandgate_router.control.selectors import MAX_REQUIREMENTS, MAX_SELECTOR, parse_selector
from sandgate_router.errors import InvalidRequest

LABELS = {"app": "web", "tier": "", "example.com/team": "a", "in": "x"}

HOLD = [
    "",
    "  ",
    "app",
    " app ",
    "app=web",
    "app==web",
    "app = web",
    "tier=",
    "app!=db",
    "other!=db",
    "app in (web)",
    "app in (db, web)",
    "app in(web)",
    "app notin (db)",
    "other notin (db)",
    "tier in ()",
    "tier in (a,)",
    "app notin ()",
    "!other",
    "! other",
    "example.com/team=a",
    "in",
    "in=x",
    "in in (x)",
    "app=web,tier,!other,example.com/team notin (b,c)",
    "app=web , app!=db",
]
DO_NOT_HOLD = [
    "other",
    "!app",
    "app=db",
    "app==",
    "app!=web",
    "tier!=",
    "other=db",
    "other in (db)",
    "other=",
    "app in (db)",
    "app in ()",
    "app notin (web, db)",
    "app=web,other",
    "app=web,app=db",
]
WRONG = [
    ",",
    "app,",
    ",app",
    "app,,tier",
    "=web",
    "!",
    "!app=web",
    "app===web",
    "app=!web",
    "app=web=db",
    "app!web",
    "app web",
    "app in web",
    "app in (web",
    "app in web)",
    "app in ((web))",
    "app in (web) tier",
    "app notin",
    "app IN (web)",
    "app>1",
    "app<1",
    "(app)",
    "app=(web)",
    "app in (a b)",
    "app in (a=b)",
    "-app=web",
    "app=-web",
    "a/b/c",
    "Example.com/app",
    "app=" + "a" * 64,
    "a" * 64,
    "café=web",
    "app=\x00",
]


@pytest.mark.parametrize("text", HOLD)
def test_a_selector_that_holds(text: str) -> None:
    assert parse_selector(text).matches(LABELS)


@pytest.mark.parametrize("text", DO_NOT_HOLD)
def test_a_selector_that_does_not_hold(text: str) -> None:
    assert not parse_selector(text).matches(LABELS)


@pytest.mark.parametrize("text", WRONG)
def test_what_kubernetes_would_refuse_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^label_selector") as caught:
        parse_selector(text)
    assert len(caught.value.message) < 250


def test_there_are_not_too_many_requirements() -> None:
    assert parse_selector(",".join(["app"] * MAX_REQUIREMENTS)).matches(LABELS)
    with pytest.raises(InvalidRequest, match=r"^label_selector has 33 requirements"):
        parse_selector(",".join(["app"] * (MAX_REQUIREMENTS + 1)))


@pytest.mark.parametrize("text", ["(" * 8000, "()" * 4000, "a" * 8000, "a," * 4000, "!" * 8000])
def test_the_longest_query_ends_in_a_short_refusal(text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_selector(text)
    assert len(caught.value.message) < 250


def test_a_selector_is_not_too_long() -> None:
    assert parse_selector("app" + " " * (MAX_SELECTOR - 3)).matches(LABELS)
    with pytest.raises(InvalidRequest, match=r"^label_selector has 4097 characters, at most 4096"):
        parse_selector("app" + " " * (MAX_SELECTOR - 2))


@pytest.mark.parametrize(
    ("start", "filling", "end"),
    [
        ("a==", " ", "<"),
        ("a", " ", "<"),
        ("", " ", "<"),
        ("!", " ", "<"),
        ("a in", " ", "<"),
        ("a in (", " ", "<"),
        ("a in (", "a", ""),
        ("", "a", "<"),
        ("a=", "a", "<"),
        ("", "(", ""),
        ("", "()", "<"),
        ("a in (", ",", ")<"),
        ("", "a/", "<"),
    ],
)
def test_the_time_of_a_selector_grows_with_its_length_alone(
    monkeypatch: pytest.MonkeyPatch, start: str, filling: str, end: str
) -> None:
    # What is quadratic takes minutes for as much; what is not, milliseconds.
    monkeypatch.setattr("sandgate_router.control.selectors.MAX_SELECTOR", 10**6)
    begun = time.monotonic()
    with pytest.raises(InvalidRequest):
        parse_selector(start + filling * 200_000 + end)
    assert time.monotonic() - begun < 10
