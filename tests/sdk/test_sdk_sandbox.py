"""Processes, terminals and files of a real sandbox, through a real gateway, in both shells."""

import asyncio
import inspect
import io
import os
import tarfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.system_gateway import SystemGateway, sandgate_up, wait_until

from sandgate import (
    AsyncSandbox,
    AsyncSandboxes,
    Exit,
    FileChange,
    Gateway,
    Match,
    Output,
    ProcessEnded,
    ProcessNotFound,
    Sandbox,
    Started,
    TerminalSize,
)

Do = Callable[[Callable[[Any], Any]], Any]
"""Runs a function on a sandbox; what it returns is awaited where it is awaitable."""


@pytest.fixture(scope="module")
def gateway() -> Iterator[SystemGateway]:
    with sandgate_up(isolation="none", pool={"warm": 2, "max": 8}) as gateway:
        yield gateway


@pytest.fixture
def sandbox(gateway: SystemGateway) -> Iterator[Sandbox]:
    with gateway.sandboxes() as sandboxes, sandboxes.claim("python") as sandbox:
        yield sandbox


@pytest.fixture(params=["sync", "async"])
def do(request: pytest.FixtureRequest, gateway: SystemGateway, sandbox: Sandbox) -> Do:
    """Run steps on the same sandbox, by one shell or the other."""
    if request.param == "sync":
        return lambda step: step(sandbox)

    async def run(step: Callable[[AsyncSandbox], Any]) -> Any:
        async with AsyncSandboxes(Gateway(gateway.url)) as sandboxes:
            result = step(sandboxes.from_json(sandbox.to_json()))
            return await result if inspect.isawaitable(result) else result

    return lambda step: asyncio.run(run(step))


def test_input_is_text_or_bytes_and_ends(do: Do) -> None:
    assert do(lambda s: s.commands.run("cat", stdin="é\n")).stdout == "é\n"
    assert do(lambda s: s.commands.run(["cat"], stdin=b"\x00\xff")).stdout_bytes == b"\x00\xff"
    assert do(lambda s: s.commands.run("cat")).stdout == ""


def test_a_process_is_started_written_to_and_waited_for(sandbox: Sandbox) -> None:
    process = sandbox.commands.start("read a; read b; echo $a-$b; exit 6", open_stdin=True)
    assert process.write_stdin("one\n").open
    written = process.write_stdin(b"two\n", eof=True)
    assert (written.written, written.open) == (4, False)
    result = process.wait()
    assert (result.stdout, result.exit_code) == ("one-two\n", 6)
    with pytest.raises(ProcessEnded):
        process.write_stdin("more")
    status = process.status()
    assert (status.running, status.id, status.pid) == (False, process.id, process.pid)
    assert status.exit is not None
    assert status.exit.exit_code == 6


async def test_an_async_process_too(gateway: SystemGateway) -> None:
    async with (
        AsyncSandboxes(Gateway(gateway.url)) as sandboxes,
        await sandboxes.claim("python") as sandbox,
    ):
        process = await sandbox.commands.start("read a; echo $a; exec sleep 1000", open_stdin=True)
        await process.write_stdin("x\n", eof=True)
        pieces: list[bytes] = []
        async for event in process:
            if isinstance(event, Output):
                pieces.append(event.data)
                await process.signal("SIGTERM")
        assert pieces == [b"x\n"]
        heard: list[str] = []

        async def hear(text: str) -> None:
            await asyncio.sleep(0)
            heard.append(text)

        result = await sandbox.commands.run("echo a; echo b >&2", on_stdout=hear, on_stderr=hear)
        assert sorted(heard) == ["a\n", "b\n"]
        assert result.stdout == "a\n"


def test_a_process_is_found_again_by_its_id_from_its_first_event(
    gateway: SystemGateway, sandbox: Sandbox
) -> None:
    first = sandbox.commands.start("echo one; echo two; exec sleep 1000")
    events = first.events()
    assert isinstance(next(events), Started)
    events.close()
    assert first.status().running
    with gateway.sandboxes() as others:
        again = others.from_json(sandbox.to_json()).commands.attach(first.id)
        seen = b""
        for event in again:
            if isinstance(event, Output):
                seen += event.data
                if seen == b"one\ntwo\n":
                    again.signal("SIGKILL")
            elif isinstance(event, Exit):
                assert (event.exit_code, event.reason) == (137, "killed")
    assert seen == b"one\ntwo\n"
    # The first handle goes on where it was.
    assert [type(event) for event in first][-1] is Exit
    with pytest.raises(ProcessNotFound):
        sandbox.commands.attach("nowhere")


def test_a_block_kills_its_process_and_a_kill_may_come_twice(sandbox: Sandbox) -> None:
    with sandbox.commands.start("exec sleep 1000") as process:
        assert process.status().running
    with pytest.raises(ProcessNotFound):
        process.status()
    process.kill()
    assert process.id not in [known.id for known in sandbox.commands.list()]


def test_a_terminal_has_a_size_that_changes_and_takes_keys(sandbox: Sandbox) -> None:
    with sandbox.terminal("stty size; read x; stty size; exit 9", cols=90, rows=33) as terminal:
        seen = b""
        for event in terminal.events():
            if isinstance(event, Output):
                seen += event.data
                if seen == b"33 90\r\n":
                    terminal.resize(TerminalSize(100, 40))
                    terminal.write_stdin("\r")
            elif isinstance(event, Exit):
                assert event.exit_code == 9
        assert seen.endswith(b"40 100\r\n")


def test_files_are_written_found_moved_and_removed(do: Do) -> None:
    do(lambda s: s.files.write("src/a/one.py", "alpha\nbeta\n"))
    do(lambda s: s.files.write("src/two.txt", b"beta"))
    found = do(lambda s: s.files.stat("src/two.txt"))
    assert (found.name, found.is_dir, found.size) == ("two.txt", False, 4)
    assert do(lambda s: s.files.stat("src")).is_dir
    assert [e.name for e in do(lambda s: s.files.list("src"))] == ["a", "two.txt"]
    deep = do(lambda s: s.files.list("src", recursive=True))
    assert [e.name for e in deep] == ["a", "a/one.py", "two.txt"]
    assert [e.name for e in do(lambda s: s.files.glob("**/*.py"))] == ["src/a/one.py"]
    assert do(lambda s: s.files.grep("beta")) == [
        Match("src/a/one.py", 2, "beta"),
        Match("src/two.txt", 1, "beta"),
    ]
    assert len(do(lambda s: s.files.grep("beta", limit=1))) == 1
    assert do(lambda s: s.files.grep("beta", pattern="*.txt")) == [Match("src/two.txt", 1, "beta")]
    assert do(lambda s: s.files.mkdir("src/new", mode=0o700)) is True
    assert do(lambda s: s.files.mkdir("src/new")) is False
    do(lambda s: s.files.move("src/two.txt", "src/new/two.txt"))
    assert not do(lambda s: s.files.exists("src/two.txt"))
    assert do(lambda s: s.files.read_text("src/new/two.txt")) == "beta"
    do(lambda s: s.files.remove("src/new/two.txt"))
    do(lambda s: s.files.remove("src/new"))
    do(lambda s: s.files.remove("src", recursive=True))
    assert do(lambda s: s.files.list()) == []


@pytest.mark.parametrize(
    ("step", "error"),
    [
        (lambda s: s.files.read("missing"), FileNotFoundError),
        (lambda s: s.files.read("folder"), IsADirectoryError),
        (lambda s: s.files.download("folder", to=io.BytesIO()), IsADirectoryError),
        (lambda s: s.files.list("file"), NotADirectoryError),
        (lambda s: s.files.list("missing"), FileNotFoundError),
        (lambda s: s.files.write("folder", b""), IsADirectoryError),
        (lambda s: s.files.remove("missing"), FileNotFoundError),
        (lambda s: s.files.remove("folder"), OSError),
        (lambda s: s.files.move("missing", "x"), FileNotFoundError),
        (lambda s: s.files.move("file", "other"), FileExistsError),
        (lambda s: s.files.stat("missing"), FileNotFoundError),
    ],
)
def test_what_cannot_be_done_raises_what_a_local_file_would(
    do: Do, sandbox: Sandbox, step: Callable[[Any], Any], error: type[OSError]
) -> None:
    for name in ("file", "other", "folder/in"):
        sandbox.files.write(name, "kept")
    with pytest.raises(error):
        do(step)
    assert sandbox.files.read_text("other") == "kept"
    assert sandbox.files.read_text("folder/in") == "kept"


def test_files_and_folders_go_up_and_down_with_progress(do: Do, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "deep" / "er").mkdir(parents=True)
    content = os.urandom(700_000)
    (source / "deep" / "er" / "f.bin").write_bytes(content)
    (source / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (source / "run.sh").chmod(0o755)
    (source / "inside").symlink_to("run.sh")
    (source / "outside").symlink_to("/etc/hostname")
    steps: list[tuple[int, int | None]] = []

    def show(done: int, total: int | None) -> None:
        steps.append((done, total))

    do(lambda s: s.files.upload(source / "deep/er/f.bin", "up/f.bin", progress=show))
    assert steps[-1] == (700_000, 700_000)
    assert [done for done, _ in steps] == sorted(done for done, _ in steps)
    target = tmp_path / "f.bin"
    target.write_text("old")
    assert do(lambda s: s.files.download("up/f.bin", to=target, progress=show)) == 700_000
    assert target.read_bytes() == content
    assert steps[-1] == (700_000, 700_000)
    do(lambda s: s.files.upload_folder(source, "tree", progress=show))
    names = [entry.name for entry in do(lambda s: s.files.list("tree", recursive=True))]
    assert names == ["deep", "deep/er", "deep/er/f.bin", "inside", "run.sh"]
    assert do(lambda s: s.commands.run("tree/run.sh")).stdout == "ran\n"
    do(lambda s: s.files.download_folder("tree", to=tmp_path / "back"))
    assert (tmp_path / "back/deep/er/f.bin").read_bytes() == content
    assert (tmp_path / "back/run.sh").stat().st_mode & 0o777 == 0o755
    assert sorted(path.name for path in tmp_path.iterdir()) == ["back", "f.bin", "source"]


def test_a_download_that_fails_leaves_what_was_there(do: Do, tmp_path: Path) -> None:
    target = tmp_path / "kept"
    target.write_text("kept")
    with pytest.raises(FileNotFoundError):
        do(lambda s: s.files.download("missing", to=target))
    do(lambda s: s.files.write("big", b"x" * 10))
    with pytest.raises(RuntimeError, match="enough"):
        do(lambda s: s.files.download("big", to=target, progress=_refuse))
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert target.read_text() == "kept"


def test_changes_are_told_as_they_happen(sandbox: Sandbox) -> None:
    sandbox.files.mkdir("watched")
    seen: list[FileChange] = []

    def watch() -> None:
        # Not at once: each change is told while the iteration still runs.
        seen.extend(change for change in sandbox.files.watch("watched", recursive=True))

    thread = threading.Thread(target=watch)
    thread.start()
    # Nothing says when the watch stands, so files are made until one is seen.
    numbers = iter(range(10_000))

    def is_seen() -> bool:
        sandbox.files.write(f"watched/{next(numbers)}", "")
        return bool(seen)

    wait_until(is_seen)
    sandbox.files.remove("watched", recursive=True)
    thread.join(30)
    assert not thread.is_alive()
    assert seen[0].kind == "created"


def test_an_archive_of_a_sandbox_writes_nothing_outside_of_its_folder(tmp_path: Path) -> None:
    from sandgate._local import unpacking

    evil = io.BytesIO()
    with tarfile.open(fileobj=evil, mode="w:gz") as archive:
        archive.addfile(tarfile.TarInfo("../escaped"), io.BytesIO())
    with (
        pytest.raises(tarfile.OutsideDestinationError),
        unpacking(tmp_path / "in") as content,
    ):
        content.write(evil.getvalue())
    assert not (tmp_path / "escaped").exists()


def test_claims_are_listed_by_what_was_said_of_them(gateway: SystemGateway) -> None:
    with (
        gateway.sandboxes() as sandboxes,
        sandboxes.claim("python", labels={"app": "web"}) as first,
        sandboxes.claim("python", labels={"app": "db"}, ports=[3000, 8888]),
    ):
        (found,) = sandboxes.list(namespace="default", label_selector="app=web")
        assert (found.name, found.labels, found.token) == (first.claim, {"app": "web"}, None)
        assert len(sandboxes.list(pool="python")) == 2


def test_what_happens_to_claims_is_told(gateway: SystemGateway) -> None:
    with gateway.sandboxes() as sandboxes:
        events = sandboxes.events()
        kinds: list[str] = []
        standing = threading.Event()

        def follow() -> None:
            for event in events:
                standing.set()
                if event.claim is not None and event.claim.name.startswith("told-"):
                    kinds.append(event.kind)
                if event.kind == "claim.released" and "told-last" in str(event.claim):
                    return

        thread = threading.Thread(target=follow)
        thread.start()
        numbers = iter(range(1000))

        def stands() -> bool:
            sandboxes.claim("python", name=f"told-{next(numbers)}").release()
            return standing.is_set()

        wait_until(stands, seconds=60)
        sandboxes.claim("python", name="told-last").release()
        thread.join(30)
        assert not thread.is_alive()
        events.close()
    assert kinds[-2:] == ["claim.created", "claim.released"]


def _refuse(_done: int, _total: int | None) -> None:
    raise RuntimeError("enough")
