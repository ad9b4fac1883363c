"""Terminals over a WebSocket, typed into by a real client."""

import contextlib
import hashlib
import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.process_events import create, follow, look, wait_for_exit
from support.runtime_server import RuntimeServer, is_alive, start_runtime, wait_until
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

PTY = {"cols": 80, "rows": 24}


class Terminal:
    """A client's side of one attached terminal."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self.shown = b""
        self.told: list[dict[str, Any]] = []
        self.attached = self.read_told("attached")

    def read(self) -> None:
        """Take one frame."""
        frame = self.connection.recv(timeout=10)
        if isinstance(frame, bytes):
            self.shown += frame
        else:
            self.told.append(json.loads(frame))

    def read_until(self, condition: Callable[[bytes], object]) -> bytes:
        """Take frames until what was shown is as wanted; return it."""
        while not condition(self.shown):
            self.read()
        return self.shown

    def read_told(self, kind: str) -> dict[str, Any]:
        """Take frames until a message of this kind is there."""
        while not (found := [one for one in self.told if one["type"] == kind]):
            self.read()
        return found[0]

    def type(self, text: str) -> None:
        """Type."""
        self.connection.send(text.encode())

    def say(self, **members: object) -> None:
        """Send a text frame."""
        self.connection.send(json.dumps(members))


@contextlib.contextmanager
def attach(runtime: RuntimeServer, process: object, query: str = "") -> Iterator[Terminal]:
    url = runtime.url.replace("http:", "ws:") + f"/v1/processes/{process}/attach{query}"
    with connect(url, max_size=None) as connection:
        yield Terminal(connection)


def test_what_is_typed_is_run_and_the_end_is_told(runtime: RuntimeServer) -> None:
    made = create(runtime, argv=["sh"], env={"PS1": "> "}, pty=PTY, linger_seconds=30)
    with attach(runtime, made["id"]) as terminal:
        assert terminal.attached == {
            "type": "attached",
            "id": made["id"],
            "pid": made["pid"],
            "offset": 0,
        }
        terminal.type("echo $((6*7))\n")
        terminal.read_until(lambda shown: b"\r\n42\r\n" in shown)
        terminal.type("exit 5\n")
        exit_ = terminal.read_told("exit")
        assert (exit_["exit_code"], exit_["reason"]) == (5, "exited")
        with pytest.raises(ConnectionClosed) as closed:
            terminal.read()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1000


def test_size_and_signals_are_told_in_text_frames(runtime: RuntimeServer) -> None:
    script = "trap 'stty size' WINCH; trap 'exit 9' USR1; echo up; while :; do sleep 0.02; done"
    made = create(runtime, shell=script, pty=PTY, linger_seconds=30)
    with attach(runtime, made["id"]) as terminal:
        terminal.read_until(lambda shown: b"up" in shown)
        terminal.say(type="resize", cols=120, rows=40)
        terminal.read_until(lambda shown: b"40 120" in shown)
        terminal.say(type="signal", signal="SIGUSR1")
        assert terminal.read_told("exit")["exit_code"] == 9


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "[]",
        "{}",
        '{"type": "resize", "cols": 0, "rows": 1}',
        '{"type": "resize", "cols": 80, "rows": 24, "x": 1}',
        '{"type": "signal"}',
        "[" * 100_000,
    ],
)
def test_a_frame_that_means_nothing_is_answered_and_changes_nothing(
    runtime: RuntimeServer, text: str
) -> None:
    made = create(runtime, argv=["cat"], pty=PTY, linger_seconds=30)
    with attach(runtime, made["id"]) as terminal:
        terminal.connection.send(text)
        assert terminal.read_told("error")["code"] == "INVALID_ARGUMENT"
        terminal.type("on\n")
        terminal.read_until(lambda shown: shown == b"on\r\non\r\n")
    runtime.client.delete(f"/v1/processes/{made['id']}")


def test_who_comes_back_sees_all_or_what_followed(runtime: RuntimeServer) -> None:
    made = create(runtime, argv=["cat"], pty=PTY, linger_seconds=30)
    with attach(runtime, made["id"]) as terminal:
        terminal.type("one\n")
        terminal.read_until(lambda shown: shown == b"one\r\none\r\n")
        terminal.connection.socket.close()  # lost, without a word
    wait_until(lambda: look(runtime, made["id"])["watchers"] == 0)
    answer = runtime.client.post(f"/v1/processes/{made['id']}/stdin", json={"text": "two\n"})
    assert answer.status_code == 200
    with attach(runtime, made["id"]) as whole, attach(runtime, made["id"], "?offset=7") as rest:
        whole.read_until(lambda shown: shown == b"one\r\none\r\ntwo\r\ntwo\r\n")
        assert rest.attached["offset"] == 7
        rest.read_until(lambda shown: shown == b"e\r\ntwo\r\ntwo\r\n"[-len(shown) or None :])
        rest.read_until(lambda shown: shown.endswith(b"two\r\ntwo\r\n"))
    with attach(runtime, made["id"], "?offset=999999") as ahead:
        assert ahead.attached["offset"] == len(b"one\r\none\r\ntwo\r\ntwo\r\n")
    runtime.client.delete(f"/v1/processes/{made['id']}")


def test_where_output_is_gone_the_offset_says_so(tmp_path: Path) -> None:
    with start_runtime(tmp_path, env={"SANDGATE_OUTPUT_BUFFER_BYTES": "20000"}) as server:
        made = create(server, shell="seq 100000", pty=PTY, detach=True)
        wait_for_exit(server, made["id"])
        whole = b"".join(b"%d\r\n" % n for n in range(1, 100_001))
        with attach(server, made["id"]) as terminal:
            begin = int(terminal.attached["offset"])
            exit_ = terminal.read_told("exit")
            assert 0 < len(whole) - begin <= 20_000
            assert terminal.shown == whole[begin:]
            assert exit_["truncated"] == {"stdout": begin, "stderr": 0}


def test_the_last_client_that_leaves_takes_the_terminal_along(runtime: RuntimeServer) -> None:
    made = create(runtime, argv=["sleep", "1000"], pty=PTY, linger_seconds=3)
    with attach(runtime, made["id"]):
        assert is_alive(int(str(made["pid"])))
    assert wait_for_exit(runtime, made["id"])["reason"] == "killed"


def test_a_slow_client_makes_the_terminal_wait_and_loses_nothing(
    fresh_runtime: RuntimeServer,
) -> None:
    made = create(fresh_runtime, shell="seq 1000000; touch done", pty=PTY, linger_seconds=30)
    with attach(fresh_runtime, made["id"]) as terminal:
        before = fresh_runtime.resident_bytes()
        wait_until(lambda: int(str(look(fresh_runtime, made["id"])["last_event_id"])) > 20)
        # 6.9 MB are to come; the client reads none of it meanwhile.
        with contextlib.suppress(AssertionError):
            wait_until((fresh_runtime.base / "done").exists, seconds=1)
        assert fresh_runtime.resident_bytes() - before < 8 << 20
        terminal.read_told("exit")
        assert terminal.shown == b"".join(b"%d\r\n" % n for n in range(1, 1_000_001))


@pytest.mark.parametrize(
    ("terminal", "query", "status", "reason"),
    [
        (None, "", 404, "process_not_found"),
        (False, "", 409, "no_terminal"),
        (True, "?offset=x", 422, "invalid_request"),
    ],
)
def test_a_wrong_attachment_is_refused_before_the_upgrade(
    runtime: RuntimeServer, terminal: bool | None, query: str, status: int, reason: str
) -> None:
    process: object = "nosuch"
    if terminal is not None:
        pty = {"pty": PTY} if terminal else {}
        process = create(runtime, argv=["sleep", "1000"], detach=True, **pty)["id"]
    with pytest.raises(InvalidStatus) as refused, attach(runtime, process, query):
        pass
    answer = refused.value.response
    assert answer.status_code == status
    assert json.loads(answer.body or b"")["reason"] == reason


def test_who_means_another_sandbox_or_comes_from_a_page_is_refused(tmp_path: Path) -> None:
    env = {"SANDGATE_SANDBOX_NAME": "ns/a", "SANDGATE_SANDBOX_UID": "u1"}
    for known, headers, status in (
        (env, {}, 421),
        (env, {"X-Sandbox-Expect-Name": "ns/a", "X-Sandbox-Expect-UID": "u2"}, 421),
        ({}, {"Origin": "http://evil.example"}, 403),
    ):
        with start_runtime(tmp_path, env=known) as server:
            url = server.url.replace("http:", "ws:") + "/v1/processes/x/attach"
            with pytest.raises(InvalidStatus) as refused:
                connect(url, additional_headers=headers)
            assert refused.value.response.status_code == status


def test_an_interactive_interpreter_works(runtime: RuntimeServer) -> None:
    made = create(runtime, argv=["python3", "-i", "-q"], pty=PTY, linger_seconds=30)
    with attach(runtime, made["id"]) as terminal:
        terminal.read_until(lambda shown: b">>> " in shown)
        terminal.type("print('a' * 3)\r")
        terminal.read_until(lambda shown: b"\naaa\r\n" in shown)
        terminal.type("import time; print('go' + 'ing'); time.sleep(1000)\r")
        terminal.read_until(lambda shown: b"going\r\n" in shown)
        terminal.type("\x03")
        terminal.read_until(lambda shown: b"KeyboardInterrupt" in shown)
        terminal.type("\x04")
        assert terminal.read_told("exit")["reason"] == "exited"


def screen(name: str) -> list[str]:
    """Return what a terminal of tmux shows, without its trailing spaces."""
    shown = subprocess.run(
        ["tmux", "-L", name, "capture-pane", "-p"], capture_output=True, text=True, check=True
    )
    return [line.rstrip() for line in shown.stdout.splitlines()]


@pytest.mark.skipif(not (shutil.which("tmux") and shutil.which("vim")), reason="needs tmux and vim")
def test_an_editor_in_a_terminal_multiplexer_shows_the_same_screen(
    fresh_runtime: RuntimeServer,
) -> None:
    """The screen is compared with what the multiplexer says that it shows."""
    text = "".join(f"line {n}\n" for n in range(1, 101))
    (fresh_runtime.base / "text").write_text(text)
    name = f"sandgate-{fresh_runtime.process.pid}"
    tmux = ["tmux", "-f", "/dev/null", "-L", name, "new-session"]
    made = create(
        fresh_runtime,
        argv=[*tmux, "vim -u NONE -N text"],
        env={"TERM": "xterm", "LC_ALL": "C.UTF-8"},
        pty={"cols": 60, "rows": 20},
        linger_seconds=30,
    )
    try:
        with attach(fresh_runtime, made["id"]) as terminal:
            terminal.read_until(lambda shown: b"line 18" in shown)
            terminal.type("50Gzt")
            terminal.read_until(lambda shown: b"line 67" in shown)
            wait_until(lambda: screen(name)[0] == "line 50")
            terminal.say(type="resize", cols=100, rows=30)
            wait_until(lambda: len(screen(name)) == 29)  # the thirtieth is tmux's own
            terminal.type("ggOtyped\x1b")
            wait_until(lambda: screen(name)[:3] == ["typed", "line 1", "line 2"])
            terminal.type(":wq\r")
            terminal.read_told("exit")
        assert (fresh_runtime.base / "text").read_text() == "typed\n" + text
    finally:
        subprocess.run(["tmux", "-L", name, "kill-server"], capture_output=True, check=False)
    events = follow(fresh_runtime, made["id"])
    assert events[-1].content["exit_code"] == 0


DEAF = "stty raw -echo; trap 'exit 9' USR1; echo up; while :; do sleep 0.02; done"


def test_a_terminal_that_does_not_read_can_be_signalled(runtime: RuntimeServer) -> None:
    made = create(runtime, shell=DEAF, pty=PTY, linger_seconds=30)
    with attach(runtime, made["id"]) as terminal:
        terminal.read_until(lambda shown: b"up" in shown)
        for _ in range(4):
            terminal.type("x" * 65536)
        terminal.say(type="signal", signal="SIGUSR1")
        assert terminal.read_told("exit")["exit_code"] == 9


def test_who_leaves_a_terminal_that_does_not_read_is_no_watcher(runtime: RuntimeServer) -> None:
    made = create(runtime, shell=DEAF, pty=PTY, detach=True)
    with attach(runtime, made["id"]) as terminal:
        terminal.read_until(lambda shown: b"up" in shown)
        terminal.type("x" * 65536)
    wait_until(lambda: look(runtime, made["id"])["watchers"] == 0)
    runtime.client.delete(f"/v1/processes/{made['id']}")


def test_what_is_typed_beyond_all_room_is_refused_and_a_signal_follows(
    runtime: RuntimeServer,
) -> None:
    made = create(runtime, shell=DEAF, pty=PTY, linger_seconds=30)
    with attach(runtime, made["id"]) as terminal:
        terminal.read_until(lambda shown: b"up" in shown)
        for _ in range(6):
            terminal.type("x" * (512 * 1024))
        terminal.say(type="signal", signal="SIGUSR1")
        assert terminal.read_told("exit")["exit_code"] == 9
        assert terminal.read_told("error")["reason"] == "content_too_large"


def test_what_is_typed_faster_than_it_is_read_arrives_whole(runtime: RuntimeServer) -> None:
    script = "stty raw -echo; echo up; head -c 8388608 | sha256sum; sleep 0.1"
    made = create(runtime, shell=script, pty=PTY, linger_seconds=30)
    text = "".join(f"{n:015d}\n" for n in range(1 << 19))
    with attach(runtime, made["id"]) as terminal:
        terminal.read_until(lambda shown: b"up" in shown)
        for begin in range(0, len(text), 1 << 20):
            terminal.type(text[begin : begin + (1 << 20)])
        terminal.read_told("exit")
        assert hashlib.sha256(text.encode()).hexdigest().encode() in terminal.shown


def test_what_was_typed_before_its_client_left_is_still_read(
    fresh_runtime: RuntimeServer,
) -> None:
    script = "stty -echo; echo up; read line; sleep 0.3; head -c 50000 >/dev/null; touch whole"
    made = create(fresh_runtime, shell=script, pty=PTY, detach=True)
    with attach(fresh_runtime, made["id"]) as terminal:
        terminal.read_until(lambda shown: b"up" in shown)
        terminal.type("go\n")
        terminal.type("x" * 99 + "\n")
        for _ in range(500):
            terminal.type("x" * 99 + "\n")
    wait_until((fresh_runtime.base / "whole").exists)
