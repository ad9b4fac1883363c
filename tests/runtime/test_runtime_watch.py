"""`GET /v1/watch`: changes as they happen, over real sockets."""

import asyncio
import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from support.file_calls import at, reason
from support.runtime_server import RuntimeServer, start_runtime, wait_until

from sandgate_runtime.files.watching import MAX_DIRECTORIES, Change, TreeWatch
from sandgate_runtime.paths import PathRules
from sandgate_runtime.v1.watch import MAX_STREAMS, Watches


class Events:
    """The events of one stream, read as a client reads them."""

    def __init__(self, answer: httpx.Response) -> None:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"] == "text/event-stream"
        self._lines = answer.iter_lines()

    def next(self) -> tuple[str, Any]:
        name = ""
        for line in self._lines:
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                return name, json.loads(line.removeprefix("data: "))
        return "end", {}

    def until(self, name: str, path: str) -> list[tuple[str, str]]:
        """Return the events up to one that must come."""
        seen: list[tuple[str, str]] = []
        while (name, path) not in seen:
            kind, members = self.next()
            assert kind != "end", seen
            seen.append((kind, members.get("name", "")))
        return seen


@contextlib.contextmanager
def watch(server: RuntimeServer, **parameters: str) -> Iterator[Events]:
    with (
        httpx.Client(base_url=server.url, timeout=30) as client,
        client.stream("GET", "/v1/watch", params=parameters) as answer,
    ):
        events = Events(answer)
        assert events.next() == ("ready", {})
        yield events


def test_files_are_told_as_they_come_change_and_go(fresh_runtime: RuntimeServer) -> None:
    base = fresh_runtime.base
    with watch(fresh_runtime) as events:
        (base / "f").write_text("x")
        assert events.until("created", "f")[-1] == ("created", "f")
        events.until("modified", "f")
        (base / "f").rename(base / "ä\udcff")
        assert ("deleted", "f") in events.until("created", "ä\udcff")
        (base / "ä\udcff").unlink()
        events.until("deleted", "ä\udcff")


def test_what_a_command_and_an_upload_write_is_told_and_our_own_files_are_not(
    fresh_runtime: RuntimeServer,
) -> None:
    with watch(fresh_runtime) as events:
        assert fresh_runtime.client.put(at("up"), content=b"x").status_code == 204
        fresh_runtime.run("touch done")
        seen = events.until("created", "done")
    assert ("created", "up") in seen
    assert not [path for _, path in seen if path.startswith(".sandgate-")]


def test_a_tree_is_watched_with_what_is_made_in_it_later(fresh_runtime: RuntimeServer) -> None:
    base = fresh_runtime.base
    (base / "old" / "deep").mkdir(parents=True)
    with watch(fresh_runtime, recursive="true") as events:
        (base / "old" / "deep" / "f").touch()
        events.until("created", "old/deep/f")
        (base / "new" / "deep").mkdir(parents=True)
        (base / "new" / "deep" / "f").touch()
        events.until("created", "new/deep/f")
        (base / "new").rename(base / "moved")
        assert ("deleted", "new") in events.until("created", "moved/deep/f")
        (base / "moved" / "deep" / "g").touch()
        events.until("created", "moved/deep/g")
        shutil.rmtree(base / "moved")
        events.until("deleted", "moved")
    with watch(fresh_runtime) as events:
        (base / "old" / "deep" / "g").touch()
        (base / "top").touch()
        assert events.until("created", "top") == [("created", "top")]


def test_a_tree_is_not_watched_through_links(fresh_runtime: RuntimeServer) -> None:
    outside = fresh_runtime.base.parent / "outside"
    outside.mkdir()
    (fresh_runtime.base / "link").symlink_to(outside)
    with watch(fresh_runtime, recursive="true") as events:
        (fresh_runtime.base / "later").symlink_to(outside)
        (outside / "secret").touch()
        (fresh_runtime.base / "done").touch()
        assert events.until("created", "done") == [("created", "later"), ("created", "done")]


def test_the_stream_ends_when_the_directory_is_gone(fresh_runtime: RuntimeServer) -> None:
    (fresh_runtime.base / "d").mkdir()
    with watch(fresh_runtime, path="d") as events:
        (fresh_runtime.base / "d").rmdir()
        assert events.next() == ("deleted", {"name": ""})
        assert events.next() == ("end", {})


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("path=nosuch", (404, "file_not_found")),
        ("path=f", (400, "not_a_directory")),
        ("path=fifo", (400, "not_a_directory")),
        ("path=..", (403, "permission_denied")),
        ("path=a%00b", (400, "invalid_path")),
        ("recursive=x", (400, "invalid_parameter")),
        ("depth=1", (400, "invalid_parameter")),
    ],
)
def test_a_wrong_watch_is_refused(
    fresh_runtime: RuntimeServer, query: str, expected: tuple[int, str]
) -> None:
    (fresh_runtime.base / "f").touch()
    os.mkfifo(fresh_runtime.base / "fifo")
    assert reason(fresh_runtime.client.get(f"/v1/watch?{query}")) == expected


def test_watches_are_limited_in_number_and_leave_nothing_behind(
    fresh_runtime: RuntimeServer,
) -> None:
    fresh_runtime.running()
    before = fresh_runtime.descriptors()
    with contextlib.ExitStack() as stack:
        for _ in range(MAX_STREAMS):
            stack.enter_context(watch(fresh_runtime))
        assert reason(fresh_runtime.client.get("/v1/watch")) == (429, "watch_limit")
    wait_until(lambda: fresh_runtime.descriptors() <= before)
    with watch(fresh_runtime):
        pass


def test_a_reader_who_does_not_read_costs_nothing_and_is_told_what_was_lost(
    tmp_path: Path,
) -> None:
    """The kernel's queue takes 16,384 changes; the rest becomes one word."""
    watch = TreeWatch(PathRules(str(tmp_path), isolated=False).resolve(""), recursive=False)
    try:
        for number in range(20_000):
            os.mknod(tmp_path / str(number))
        changes: list[Change] = []
        while more := watch.read():
            changes += more
        assert changes[-1] == Change("overflow")
        assert 16_000 < len(changes) < 20_000
    finally:
        watch.close()


def test_a_flood_of_changes_is_told_at_flat_memory(fresh_runtime: RuntimeServer) -> None:
    with watch(fresh_runtime) as events:
        before = fresh_runtime.resident_bytes()
        fresh_runtime.run("sh -c 'for i in $(seq 20000); do echo $i > f$i; done'")
        fresh_runtime.run("touch done")
        seen: list[tuple[str, str]] = []
        while not seen or seen[-1] not in {("created", "done"), ("overflow", "")}:
            kind, members = events.next()
            seen.append((kind, members.get("name", "")))
        assert len(seen) > 1000
        assert fresh_runtime.resident_bytes() - before < 16 << 20


def test_more_directories_than_may_be_watched_are_refused_or_told(tmp_path: Path) -> None:
    place = PathRules(str(tmp_path), isolated=False).resolve("")
    for number in range(MAX_DIRECTORIES - 1):
        (tmp_path / str(number)).mkdir()
    watch = TreeWatch(place, recursive=True)
    try:
        assert repr(watch) == f"<TreeWatch {MAX_DIRECTORIES} directories>"
        (tmp_path / "more").mkdir()
        assert watch.read() == [Change("created", ("more",)), Change("overflow")]
    finally:
        watch.close()
    with pytest.raises(Exception, match="directories would be watched"):
        TreeWatch(place, recursive=True)


def test_a_directory_that_is_moved_out_is_watched_no_more(tmp_path: Path) -> None:
    (tmp_path / "base" / "d" / "sub").mkdir(parents=True)
    place = PathRules(str(tmp_path / "base"), isolated=False).resolve("")
    watch = TreeWatch(place, recursive=True)
    try:
        (tmp_path / "base" / "d").rename(tmp_path / "elsewhere")
        assert watch.read() == [Change("deleted", ("d",))]
        (tmp_path / "elsewhere" / "sub" / "secret").touch()
        assert watch.read() == []
    finally:
        watch.close()


async def test_a_quiet_stream_carries_a_comment(tmp_path: Path) -> None:
    watches = Watches(PathRules(str(tmp_path), isolated=False), ping=0.01)
    scope = {"type": "http", "method": "GET", "query_string": b"", "headers": []}
    stream = await watches.watch(Request(scope))
    leave = asyncio.Event()
    sent: list[bytes] = []

    async def receive() -> dict[str, Any]:
        await leave.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))
        if sent.count(b": ping\n\n") == 3:
            leave.set()

    await stream(scope, receive, send)
    assert sent[1].startswith(b"event: ready\n")


def test_an_isolated_sandbox_may_watch_anywhere(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    with (
        start_runtime(tmp_path / "base", env={"SANDGATE_ISOLATED": "1"}) as server,
        watch(server, path=str(tmp_path)) as events,
    ):
        (tmp_path / "f").touch()
        events.until("created", "f")
