"""The two shells are one surface: same members, same arguments, same defaults, same types."""

import inspect
import re

import pytest

from sandgate import (
    AsyncProcess,
    AsyncSandbox,
    AsyncSandboxes,
    Process,
    Sandbox,
    Sandboxes,
    _async_sandbox,
    _sandbox,
)

PAIRS = [
    (Sandboxes, AsyncSandboxes),
    (Sandbox, AsyncSandbox),
    (Process, AsyncProcess),
    (_sandbox.Commands, _async_sandbox.AsyncCommands),
    (_sandbox.Files, _async_sandbox.AsyncFiles),
]

SAME_WITHOUT_WAITING = {"attach", "from_json", "to_json", "events", "watch", "stream", "http"}
"""What sends nothing when it is called; `Commands.attach` alone does."""


def members(kind: type) -> dict[str, object]:
    names = [name for name in vars(kind) if not name.startswith("_")]
    return {name: inspect.getattr_static(kind, name) for name in names}


def types(annotation: object) -> str:
    """Return an annotation, in the words of the blocking shell."""
    text = (
        str(annotation)
        .replace("Async", "")
        .replace("_async_sandbox", "_sandbox")
        .replace("websockets.asyncio", "websockets.sync")
    )
    return re.sub(r"Generator\[(.*?)(?:, None)+\]", r"Generator[\1]", text)


@pytest.mark.parametrize(("sync", "asynchronous"), PAIRS, ids=lambda kind: kind.__name__)
def test_both_have_the_same_members_with_the_same_signatures(
    sync: type, asynchronous: type
) -> None:
    ours, theirs = members(sync), members(asynchronous)
    assert ours.keys() == theirs.keys()
    for name, member in ours.items():
        other = theirs[name]
        assert type(member) is type(other), name
        if isinstance(member, property):
            continue
        assert callable(member)
        assert callable(other)
        first, second = inspect.signature(member), inspect.signature(other)
        assert list(first.parameters) == list(second.parameters), name
        for key, parameter in first.parameters.items():
            twin = second.parameters[key]
            assert (parameter.kind, parameter.default) == (twin.kind, twin.default), (name, key)
            assert types(parameter.annotation) == types(twin.annotation), (name, key)
        assert types(first.return_annotation) == types(second.return_annotation), name


@pytest.mark.parametrize(("sync", "asynchronous"), PAIRS, ids=lambda kind: kind.__name__)
def test_what_sends_something_is_awaited(sync: type, asynchronous: type) -> None:
    del sync
    for name, member in members(asynchronous).items():
        if isinstance(member, property) or inspect.isasyncgenfunction(member):
            continue
        is_plain = name in SAME_WITHOUT_WAITING and (asynchronous, name) != (PAIRS[3][1], "attach")
        assert inspect.iscoroutinefunction(member) is not is_plain, name


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair[0].__name__)
def test_all_that_is_public_says_what_it_does(pair: tuple[type, type]) -> None:
    for kind in pair:
        assert kind.__doc__
        for name, member in members(kind).items():
            assert inspect.getdoc(member), f"{kind.__name__}.{name}"
