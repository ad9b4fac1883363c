"""The file of static sandboxes: what it may say, and what a change of it does."""

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from sandgate_router.errors import NotImplementedHere
from sandgate_router.names import DEFAULT_NAMESPACE, Label, Port
from sandgate_router.registry.base import ClaimRequest, Endpoint, Registry
from sandgate_router.registry.static import (
    MAX_PORTS,
    BadSandboxFile,
    StaticRegistry,
    load_sandboxes,
)
from sandgate_router.target import Target


def target(sandbox: str, port: int = 8888) -> Target:
    return Target(Label(sandbox), DEFAULT_NAMESPACE, Port(port))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sandboxes.yaml"


def write(path: Path, *entries: str) -> None:
    """Put a new file in the place of the old one."""
    text = "sandboxes:\n" + "".join(f"  - {entry}\n" for entry in entries)
    replace(path, text if entries else "sandboxes: []\n")


def replace(path: Path, text: str) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.replace(path)


class Following:
    """A running registry, and what has left its table."""

    def __init__(self, registry: StaticRegistry) -> None:
        self.registry = registry
        self.gone: list[Endpoint] = []
        registry.subscribe(self.gone.append)

    def endpoint(self, sandbox: str, port: int = 8888) -> Endpoint:
        endpoint = self.registry.endpoint(target(sandbox, port))
        assert endpoint is not None
        return endpoint

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not condition():
                await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def following(path: Path) -> AsyncIterator[Following]:
    registry = StaticRegistry(path, reload_seconds=0.01)
    here = Following(registry)
    await registry.start()
    try:
        yield here
    finally:
        await registry.close()


async def test_a_listed_sandbox_is_reached_on_any_port_of_its_address(path: Path) -> None:
    write(path, "{id: sb-1, host: 10.0.0.7, uid: 5f0c}")
    async with following(path) as here:
        endpoint = here.endpoint("sb-1", 3000)
        assert (endpoint.host, endpoint.port, endpoint.uid) == ("10.0.0.7", 3000, "5f0c")
        assert endpoint.name == "default/sb-1"
        assert here.endpoint("sb-1", 3000) is endpoint


async def test_listed_ports_are_the_only_ones(path: Path) -> None:
    write(path, "{id: sb-1, host: 127.0.0.1, ports: [8888, 3000]}")
    async with following(path) as here:
        assert here.endpoint("sb-1", 3000).port == 3000
        assert here.registry.endpoint(target("sb-1", 3001)) is None


async def test_a_unix_socket_serves_port_8888(path: Path) -> None:
    write(path, "{id: sb-1, unix: /run/sb-1.sock}")
    async with following(path) as here:
        endpoint = here.endpoint("sb-1")
        assert (endpoint.path, endpoint.host, endpoint.port) == ("/run/sb-1.sock", "", 0)
        assert here.registry.endpoint(target("sb-1", 80)) is None


async def test_what_is_not_listed_is_not_there(path: Path) -> None:
    write(path, "{id: sb-1, namespace: other, host: 127.0.0.1}")
    async with following(path) as here:
        assert here.registry.endpoint(target("sb-1")) is None
        assert await here.registry.find(target("sb-1")) is None


async def test_it_only_routes(path: Path) -> None:
    write(path)
    async with following(path) as here:
        registry: Registry = here.registry
        for call in (
            registry.claim(ClaimRequest(pool="python", namespace=DEFAULT_NAMESPACE)),
            registry.renew(DEFAULT_NAMESPACE, Label("a"), None),
            registry.resize(DEFAULT_NAMESPACE, "python", warm=1, max_members=None),
        ):
            with pytest.raises(NotImplementedHere, match="The static registry has no"):
                await call
        await registry.release(DEFAULT_NAMESPACE, Label("a"))
        assert (registry.claims(), registry.pools()) == ([], [])


async def test_a_changed_file_is_read_again(path: Path) -> None:
    write(path, "{id: sb-1, host: 127.0.0.1}")
    async with following(path) as here:
        write(path, "{id: sb-1, host: 127.0.0.1}", "{id: sb-2, host: 127.0.0.2}")
        await here.until(lambda: here.registry.endpoint(target("sb-2")) is not None)
        assert repr(here.registry) == "<StaticRegistry sandboxes.yaml 2 sandboxes>"


async def test_a_change_within_the_same_tick_of_the_clock_is_seen(path: Path) -> None:
    write(path, "{id: sb-1, host: 127.0.0.1}")
    state = path.stat()
    async with following(path) as here:
        write(path, "{id: sb-2, host: 127.0.0.1}")
        os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
        await here.until(lambda: here.registry.endpoint(target("sb-2")) is not None)


async def test_what_a_change_leaves_as_it_was_keeps_its_endpoints(path: Path) -> None:
    write(path, "{id: stays, host: 127.0.0.1}", "{id: leaves, host: 127.0.0.2}")
    async with following(path) as here:
        stays, leaves = here.endpoint("stays"), here.endpoint("leaves")
        never_asked_for = "{id: new, host: 127.0.0.3}"
        write(path, never_asked_for, "{namespace: default, id: stays, host: 127.0.0.1}")
        await here.until(lambda: here.registry.endpoint(target("new")) is not None)
        assert here.gone == [leaves]
        assert here.endpoint("stays") is stays
        assert here.registry.endpoint(target("leaves")) is None


@pytest.mark.parametrize(
    "changed",
    [
        "{id: sb-1, host: 127.0.0.2, uid: a}",
        "{id: sb-1, host: 127.0.0.1, uid: b}",
        "{id: sb-1, host: 127.0.0.1}",
        "{id: sb-1, unix: /run/sb-1.sock, uid: a}",
    ],
)
async def test_another_address_or_generation_is_another_endpoint(path: Path, changed: str) -> None:
    write(path, "{id: sb-1, host: 127.0.0.1, uid: a}")
    async with following(path) as here:
        before = here.endpoint("sb-1")
        write(path, changed)
        await here.until(lambda: bool(here.gone))
        assert here.gone == [before]
        assert here.endpoint("sb-1") is not before


async def test_a_port_that_is_withdrawn_leaves_alone(path: Path) -> None:
    write(path, "{id: sb-1, host: 127.0.0.1}")
    async with following(path) as here:
        stays, leaves = here.endpoint("sb-1"), here.endpoint("sb-1", 3000)
        write(path, "{id: sb-1, host: 127.0.0.1, ports: [8888, 80]}")
        await here.until(lambda: bool(here.gone))
        assert here.gone == [leaves]
        assert here.endpoint("sb-1") is stays


async def test_an_endpoint_is_out_of_the_table_when_it_is_said_to_be_gone(path: Path) -> None:
    write(path, "{id: sb-1, host: 127.0.0.1}")
    async with following(path) as here:
        here.endpoint("sb-1")
        found: list[Endpoint | None] = []
        here.registry.subscribe(lambda _: found.append(here.registry.endpoint(target("sb-1"))))
        write(path)
        await here.until(lambda: bool(found))
        assert found == [None]


BAD_TEXTS = {
    "no YAML": "sandboxes: [",
    "empty": "",
    "comment alone": "# nothing yet\n",
    "an impossible date": "sandboxes: [{id: a, host: 127.0.0.1}]\nat: 2026-02-30\n",
    "a list as a name": "? [a]\n: b\n",
    "a tag that fits nothing": "sandboxes: !!bool maybe\n",
    "list": "- {id: a, host: 127.0.0.1}\n",
    "no sandboxes": "{}\n",
    "a misspelt member": "sandboxes: [{id: a, hosts: 127.0.0.1}]",
    "a misspelt list": "sandbox: [{id: a, host: 127.0.0.1}]",
    "no address": "sandboxes: [{id: a}]",
    "two addresses": "sandboxes: [{id: a, host: 127.0.0.1, unix: /a}]",
    "a host's name": "sandboxes: [{id: a, host: localhost}]",
    "a bad id": "sandboxes: [{id: A, host: 127.0.0.1}]",
    "a bad namespace": "sandboxes: [{id: a, namespace: a.b, host: 127.0.0.1}]",
    "a port too high": "sandboxes: [{id: a, host: 127.0.0.1, ports: [65536]}]",
    "port 0": "sandboxes: [{id: a, host: 127.0.0.1, ports: [0]}]",
    "no port": "sandboxes: [{id: a, host: 127.0.0.1, ports: []}]",
    "ports of a socket": "sandboxes: [{id: a, unix: /a, ports: [8888]}]",
    "a path too long": f"sandboxes: [{{id: a, unix: /{'a' * 107}}}]",
    "no path": "sandboxes: [{id: a, unix: ''}]",
    "a UID that ends the line": 'sandboxes: [{id: a, host: 127.0.0.1, uid: "a\\r\\nX: b"}]',
    "an empty UID": 'sandboxes: [{id: a, host: 127.0.0.1, uid: ""}]',
    "listed twice": "sandboxes: [{id: a, host: 127.0.0.1}, {id: a, host: 127.0.0.2}]",
    "a date that is none": "sandboxes: [{id: a, host: 127.0.0.1, uid: 2026-99-99}]",
    "too deep": "[" * 5000,
    "an object of Python": "sandboxes: !!python/object/apply:os.getcwd []",
}


@pytest.mark.parametrize("text", BAD_TEXTS.values(), ids=BAD_TEXTS.keys())
async def test_a_file_that_cannot_be_used_stops_the_start_and_is_named(
    path: Path, text: str
) -> None:
    path.write_text(text)
    registry = StaticRegistry(path)
    with pytest.raises(BadSandboxFile) as refused:
        await registry.start()
    assert str(refused.value).startswith(f"{path}: ")
    await registry.close()


async def test_a_file_that_is_not_there_stops_the_start(path: Path) -> None:
    with pytest.raises(BadSandboxFile, match="No such file"):
        await StaticRegistry(path).start()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (BAD_TEXTS["no address"], "sandbox 'a': give either host or unix"),
        (BAD_TEXTS["listed twice"], "sandbox 'default/a' is listed twice"),
        (BAD_TEXTS["empty"], r"it is empty; write `sandboxes: \[\]` for none"),
        (BAD_TEXTS["no port"], "ports is empty; leave it out for any port"),
        (BAD_TEXTS["ports of a socket"], "a unix socket serves port 8888"),
    ],
)
def test_a_refusal_says_what_to_do(path: Path, text: str, words: str) -> None:
    path.write_text(text)
    with pytest.raises(BadSandboxFile, match=words):
        load_sandboxes(path)


@pytest.mark.parametrize("bad", ["sandboxes: [", "", "sandboxes: [{id: A, host: 127.0.0.1}]", None])
async def test_a_bad_change_is_told_once_and_the_last_good_file_stays(
    path: Path, bad: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sandgate.registry")
    write(path, "{id: sb-1, host: 127.0.0.1}")
    async with following(path) as here:
        before = here.endpoint("sb-1")
        if bad is None:
            path.unlink()
        else:
            replace(path, bad)
        await here.until(lambda: bool(caplog.records))
        for _ in range(20):
            await asyncio.sleep(0.01)
        (record,) = caplog.records
        assert (record.levelname, record.getMessage()) == ("ERROR", "static.kept")
        assert str(path) in vars(record)["reason"]
        assert here.endpoint("sb-1") is before
        write(path, "{id: sb-1, host: 127.0.0.1}", "{id: sb-2, host: 127.0.0.1}")
        await here.until(lambda: here.registry.endpoint(target("sb-2")) is not None)
        assert here.endpoint("sb-1") is before
        assert here.gone == []
        assert caplog.records[-1].getMessage() == "static.read"


async def test_walking_the_ports_costs_no_more_than_a_bound_and_leaves_8888_alone(
    path: Path,
) -> None:
    write(path, "{id: sb-1, host: 127.0.0.1}")
    async with following(path) as here:
        usual = here.endpoint("sb-1")
        for port in range(1, 1001):
            here.endpoint("sb-1", port)
        assert here.endpoint("sb-1") is usual
        assert len(here.gone) == 1001 - MAX_PORTS
        assert usual not in here.gone


async def test_requests_are_served_while_a_file_is_read_that_takes_long(path: Path) -> None:
    write(path, "{id: sb-1, host: 127.0.0.1}")
    async with following(path) as here:
        slow = path.with_suffix(".slow")
        os.mkfifo(slow)
        slow.replace(path)
        async with asyncio.timeout(20):
            while (writer := open_for_its_reader(path)) is None:
                await asyncio.sleep(0.01)
        assert here.endpoint("sb-1").host == "127.0.0.1"
        with os.fdopen(writer, "w") as file:
            file.write("sandboxes: [{id: sb-2, host: 127.0.0.1}]")
            write(path, "{id: sb-2, host: 127.0.0.1}")
        await here.until(lambda: here.registry.endpoint(target("sb-2")) is not None)


def open_for_its_reader(path: Path) -> int | None:
    """Return a descriptor of a pipe that somebody reads, or None as long as nobody does."""
    try:
        return os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return None
