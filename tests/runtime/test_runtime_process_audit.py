"""Every execution leaves one line, and no reader of them can hold the runtime up."""

import contextlib
import hashlib
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.process_events import create, run, wait_for_exit
from support.runtime_server import RUNTIME, RuntimeServer, start_runtime, wait_until

from sandgate_runtime.processes.audit import write_if_room


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def audited(tmp_path: Path, log: Path) -> Iterator[RuntimeServer]:
    """A runtime whose standard error goes to a file."""
    base = tmp_path / "base"
    base.mkdir()
    command = ("sh", "-c", f'exec "$@" 2>{log}', "sh", *RUNTIME)
    with start_runtime(base, command=command) as server:
        yield server


def lines(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


def digest(*argv: str) -> str:
    return hashlib.sha256(b"".join(word.encode() + b"\0" for word in argv)).hexdigest()


def test_each_execution_leaves_one_line_whatever_its_entry(
    audited: RuntimeServer, log: Path
) -> None:
    audited.run("sh -c 'exit 3'")
    run(audited, argv=["sleep", "1000"], timeout=0.1)
    made = create(audited, argv=["true"], pty={"cols": 80, "rows": 24}, detach=True)
    wait_for_exit(audited, made["id"])
    run(audited, argv=["nosuch"])
    audited.run("nosuch")
    wait_until(lambda: len(lines(log)) == 5)
    told = [
        (one["entry"], one["argv_sha256"], one["exit_code"], one["signal"], one["reason"])
        for one in lines(log)
    ]
    assert told == [
        ("execute", digest("sh", "-c", "exit 3"), 3, None, "exited"),
        ("processes", digest("sleep", "1000"), 143, 15, "timeout"),
        ("terminal", digest("true"), 0, None, "exited"),
        ("processes", digest("nosuch"), 127, None, "exited"),
        ("execute", digest("nosuch"), 127, None, "exited"),
    ]
    third = lines(log)[2]
    assert (third["process"], third["pid"]) == (made["id"], made["pid"])
    assert third["event"] == "process.exit"
    assert third["started"] <= third["time"]


def test_arguments_and_output_never_enter(audited: RuntimeServer, log: Path) -> None:
    run(audited, shell="echo s3cret-output # s3cret-argument", env={"A": "s3cret-variable"})
    wait_until(lambda: len(lines(log)) == 1)
    assert "s3cret" not in log.read_text()


def test_a_refused_request_leaves_no_line(audited: RuntimeServer, log: Path) -> None:
    assert audited.client.post("/v1/processes", json={"argv": ["true"]}).status_code == 422
    run(audited, argv=["true"])
    wait_until(lambda: len(lines(log)) == 1)


def test_a_reader_that_reads_nothing_holds_nobody_up(tmp_path: Path) -> None:
    """Lines that find no room are dropped and counted in the next that does."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * 4096)
    os.set_blocking(writer, True)
    command = ("bash", "-c", f'exec "$@" 2>&{writer}', "bash", *RUNTIME)
    try:
        with start_runtime(tmp_path, command=command, pass_fds=(writer,)) as server:
            for _ in range(3):
                assert server.run("true")["exit_code"] == 0
            os.read(reader, 1 << 20)
            assert server.run("true")["exit_code"] == 0
            line = json.loads(os.read(reader, 1 << 20).splitlines()[-1])
            assert line["lines_dropped"] == 3
    finally:
        os.close(reader)
        os.close(writer)


def test_a_standard_error_that_is_gone_is_no_error() -> None:
    one, other = socket.socketpair()
    assert write_if_room(b"line\n", descriptor=one.fileno())
    assert other.recv(100) == b"line\n"
    other.close()
    assert not write_if_room(b"line\n", descriptor=one.fileno())
    one.close()
    assert not write_if_room(b"line\n", descriptor=1 << 20)
