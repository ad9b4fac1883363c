"""What `sandgate up` prints: first the lines that programs wait for, then what people read."""

import json
import re
import shlex
from dataclasses import replace

import pytest
from support.fake_registry import FakeRegistry

from sandgate_router.config import Command, Config
from sandgate_router.names import Label
from sandgate_router.registry.base import PoolStatus
from sandgate_router.server import _welcome
from sandgate_router.welcome import build_welcome

URL = "http://127.0.0.1:8080"


def pool() -> PoolStatus:
    return replace(FakeRegistry().pools()[0], isolation="bubblewrap")


def curl_line(text: str) -> list[str]:
    (line,) = (line for line in text.splitlines() if line.lstrip().startswith("curl"))
    return shlex.split(line)


def python_lines(text: str) -> list[str]:
    """Return the lines between `from sandgate` and the empty line after them."""
    block, _, _ = text[text.index("  from sandgate") :].partition("\n\n")
    return [line.removeprefix("  ") for line in block.splitlines()]


def test_it_shows_one_curl_line_that_claims() -> None:
    curl, target, *options = curl_line(build_welcome(URL, pool()))
    assert (curl, target) == ("curl", f"{URL}/v1/claims")
    assert options[:3] == ["-H", "Content-Type: application/json", "-d"]
    assert json.loads(options[3]) == {"pool": "python"}


def test_it_shows_four_lines_of_python_that_compile() -> None:
    lines = python_lines(build_welcome(URL, pool()))
    assert len(lines) == 4
    compile("\n".join(lines), "welcome", "exec")
    assert f'Gateway("{URL}")' in lines[1]
    assert 'claim("python")' in lines[2]


def test_a_namespace_other_than_the_default_is_named_in_both() -> None:
    text = build_welcome(URL, replace(pool(), namespace=Label("team")))
    assert json.loads(curl_line(text)[-1]) == {"pool": "python", "namespace": "team"}
    assert 'claim("python", namespace="team")' in text


def test_that_nothing_isolates_is_said_and_only_then() -> None:
    assert "isolation is none" in build_welcome(URL, replace(pool(), isolation="none"))
    assert "isolation is none" not in build_welcome(URL, pool())


def test_no_line_can_be_taken_for_one_that_programs_wait_for() -> None:
    text = build_welcome(URL, pool())
    assert re.search(r"^(listening|metrics) on ", text, re.MULTILINE) is None
    assert text.startswith("\n")


@pytest.mark.parametrize(
    ("command", "settings", "pools", "shown"),
    [
        ("up", {}, True, True),
        ("up", {"SANDGATE_LISTEN": "[::1]:0"}, True, True),
        ("up", {"ROUTER_AUTH_TOKEN": "secret"}, True, False),  # the lines would answer 401
        ("up", {}, False, False),  # nothing to claim from
        ("up", {"SANDGATE_AUTH": "none"}, True, True),
        ("up", {"SANDGATE_KEYS": "keys.yaml"}, True, True),
        ("up", {"SANDGATE_SCOPED_TOKEN_FILE": "secret"}, True, False),  # claims have no token
        ("up", {"SANDGATE_CALLERS": "callers.yaml"}, True, False),
        (
            "up",
            {"SANDGATE_LISTEN": "0.0.0.0:0", "ALLOW_UNAUTHENTICATED_ROUTER": "true"},
            True,
            False,
        ),
        (
            "router",
            {
                "SANDGATE_LISTEN": "127.0.0.1:0",
                "SANDGATE_REGISTRY": "local",
                "ALLOW_UNAUTHENTICATED_ROUTER": "true",
            },
            True,
            False,
        ),
    ],
)
def test_it_is_printed_only_where_everyone_may_do_as_it_says(
    command: Command, settings: dict[str, str], pools: bool, shown: bool
) -> None:
    registry = FakeRegistry()
    if not pools:
        registry.pools = list  # type: ignore[method-assign]
    config = Config.from_environ(settings, command=command)
    pool_or_none = [replace(status, isolation="bubblewrap") for status in registry.pools()]
    registry.pools = lambda: pool_or_none  # type: ignore[method-assign]
    assert bool(_welcome(command, config, registry, URL)) is shown


@pytest.mark.parametrize("command", ["up", "router"])
def test_that_nothing_isolates_is_said_even_where_nothing_else_is(command: Command) -> None:
    settings = {"ROUTER_AUTH_TOKEN": "secret", "SANDGATE_REGISTRY": "local"}
    config = Config.from_environ(settings, command=command)
    text = _welcome(command, config, FakeRegistry(), URL)
    assert text == "Nothing keeps the code in a sandbox from this machine: isolation is none.\n"
