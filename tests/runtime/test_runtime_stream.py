"""`POST /v1/processes` as a live event stream."""

import json
import threading
import time
from pathlib import Path

import httpx
import pytest
from support.process_events import ACCEPT, ending, output, read_events, run
from support.runtime_server import (
    RuntimeServer,
    is_alive,
    kill_quietly,
    read_pid,
    wait_until,
)


def test_bytes_arrive_exactly_and_the_end_is_told(runtime: RuntimeServer) -> None:
    events = run(runtime, shell=r"printf '\377\376\000ok'; echo err >&2; exit 3")
    assert output(events, "stdout") == b"\xff\xfe\x00ok"
    assert output(events, "stderr") == b"err\n"
    assert ending(events) == (3, None, "exited")
    assert isinstance(events[0].content["pid"], int)
    assert events[0].content["id"]
    assert 0 < events[-1].content["duration"] < 10


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"argv": ["true"]}, (0, None, "exited")),
        ({"shell": "exit 137"}, (137, None, "exited")),
        ({"shell": "kill -9 $$"}, (137, 9, "exited")),
        ({"argv": ["sleep", "60"], "timeout": 0.2}, (143, 15, "timeout")),
        ({"shell": "trap 'exit 7' TERM; sleep 60 & wait", "timeout": 0.2}, (7, None, "timeout")),
        ({"argv": ["nosuch"]}, (127, None, "exited")),
        ({"argv": [""]}, (127, None, "exited")),
        ({"argv": ["/etc/passwd"]}, (126, None, "exited")),
        ({"argv": ["/etc"]}, (126, None, "exited")),
    ],
)
def test_every_way_to_end_can_be_told_apart(
    runtime: RuntimeServer, body: dict[str, object], expected: tuple[object, object, object]
) -> None:
    assert ending(run(runtime, **body)) == expected


def test_a_command_that_ignores_sigterm_is_killed_after_the_grace(runtime: RuntimeServer) -> None:
    started = time.monotonic()
    events = run(runtime, shell="trap '' TERM; echo on; while :; do sleep 0.1; done", timeout=0.2)
    assert ending(events) == (137, 9, "timeout")
    assert output(events, "stdout") == b"on\n"
    assert 2 < time.monotonic() - started < 4


def test_a_missing_program_is_told_on_stderr_and_has_no_pid(runtime: RuntimeServer) -> None:
    events = run(runtime, argv=["nosuch"])
    assert events[0].content == {"id": None, "pid": None}
    assert b"No such file or directory: 'nosuch'" in output(events, "stderr")


def test_output_is_told_while_the_command_runs(fresh_runtime: RuntimeServer) -> None:
    body = {"shell": "echo first; while [ ! -e go ]; do sleep 0.01; done; echo second"}
    with fresh_runtime.client.stream("POST", "/v1/processes", json=body, headers=ACCEPT) as answer:
        events = read_events(answer)
        assert next(events).name == "started"
        assert next(events).data == b"first\n"
        with httpx.Client(base_url=fresh_runtime.url) as other:
            assert other.get("/v1/health").json()["running"] == 1
        (fresh_runtime.base / "go").touch()
        assert next(events).data == b"second\n"
        assert next(events).name == "exit"
    assert fresh_runtime.running() == 0


def test_env_is_added_and_cwd_is_where_it_runs(fresh_runtime: RuntimeServer) -> None:
    (fresh_runtime.base / "sub").mkdir()
    script = 'echo "$GREETING $HOME"; pwd'
    for cwd in ("sub", "/sub"):
        events = run(fresh_runtime, shell=script, env={"GREETING": "hé llo"}, cwd=cwd)
        base = fresh_runtime.base
        assert output(events, "stdout").decode() == f"hé llo {base}\n{base}/sub\n"


def test_argv_is_passed_as_it_is(runtime: RuntimeServer) -> None:
    words = ["a b", "", "'", "$HOME", "ä\n*"]
    events = run(runtime, argv=["printf", "%s|", *words])
    assert output(events, "stdout").decode() == "".join(f"{word}|" for word in words)


def test_a_long_script_goes_by_file(runtime: RuntimeServer) -> None:
    events = run(runtime, shell=f"printf %s {'y' * 200_000} | wc -c")
    assert output(events, "stdout") == b"200000\n"


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({}, "argv"),
        ({"argv": ["true"], "shell": "true"}, "argv"),
        ({"argv": []}, "argv"),
        ({"argv": "true"}, "argv"),
        ({"argv": ["true", 1]}, "argv[1]"),
        ({"argv": ["a\0b"]}, "NUL"),
        ({"shell": "a\0b"}, "NUL"),
        ({"shell": "\ud800"}, "surrogate"),
        ({"shell": 1}, "shell"),
        ({"argv": ["echo", "x" * 131_072]}, "131071"),
        ({"shell": "touch ran", "env": {"A": "x" * 131_072}}, "longer"),
        ({"shell": "touch ran", "env": {"1A": "b"}}, "1A"),
        ({"shell": "touch ran", "env": {"A=B": "b"}}, "A=B"),
        ({"shell": "touch ran", "env": {"": "b"}}, "name of a variable"),
        ({"shell": "touch ran", "env": {"A\n": "b"}}, "name of a variable"),
        ({"shell": "touch ran", "env": {"A": 1}}, "env.A"),
        ({"shell": "touch ran", "env": {"A": "b\0"}}, "NUL"),
        ({"shell": "touch ran", "env": ["A=b"]}, "env"),
        ({"shell": "touch ran", "cwd": "nosuch"}, "nosuch"),
        ({"shell": "touch ran", "cwd": "../.."}, "cwd"),
        ({"shell": "touch ran", "cwd": "a\0"}, "NUL"),
        ({"shell": "touch ran", "cwd": "x" * 300}, "255"),
        ({"shell": "touch ran", "cwd": 1}, "cwd"),
        ({"shell": "touch ran", "timeout": 0}, "timeout"),
        ({"shell": "touch ran", "timeout": "1"}, "timeout"),
        ({"shell": "touch ran", "timeout": True}, "timeout"),
        ({"shell": "touch ran", "pty": {}}, "pty"),
        ({"shell": "touch ran", "pty": {"cols": 80}}, "pty"),
        ({"shell": "touch ran", "pty": {"cols": 0, "rows": 24}}, "cols"),
        ({"shell": "touch ran", "pty": {"cols": 80, "rows": 65536}}, "rows"),
        ({"shell": "touch ran", "detach": 1}, "detach"),
        ({"shell": "touch ran", "linger_seconds": 301}, "detach"),
        ({"shell": "touch ran", "linger_seconds": -1}, "linger_seconds"),
        ({"shell": "touch ran", "output_limit_bytes": 0}, "output_limit_bytes"),
        ({"shell": "touch ran", "stdin": 1}, "stdin"),
        ({"shell": "touch ran", "stdin": {}}, "stdin"),
        ({"shell": "touch ran", "stdin": {"base64": "a"}}, "base64"),
        ({"shell": "touch ran", "stdin": {"text": "a", "base64": "YQ=="}}, "only one"),
        ({"shell": "touch ran", "stdin": {"text": "\ud800"}}, "surrogate"),
        ({"shell": {"program": "bash"}}, "script"),
        ({"shell": "touch ran", "colour": "red"}, "colour"),
        ([], "object"),
        ("x", "object"),
    ],
)
def test_a_wrong_body_is_422_before_anything_starts(
    runtime: RuntimeServer, body: object, word: str
) -> None:
    answer = runtime.client.post(
        "/v1/processes",
        content=json.dumps(body),
        headers={**ACCEPT, "Content-Type": "application/json"},
    )
    assert answer.status_code == 422, answer.text
    assert answer.json()["code"] == "INVALID_ARGUMENT"
    assert word in answer.json()["message"]
    assert not (runtime.base / "ran").exists()


@pytest.mark.parametrize(
    ("content", "content_type", "accept", "status", "reason"),
    [
        ("{", "application/json", "text/event-stream", 400, "malformed_json"),
        ("{}", "text/plain", "text/event-stream", 415, "unsupported_media_type"),
        ('{"argv":["true"]}', "application/json", "*/*", 422, "invalid_request"),
        ('{"argv":["true"]}', "application/json", "application/json", 422, "invalid_request"),
    ],
)
def test_other_refusals_have_the_shape_of_the_interface(
    runtime: RuntimeServer, content: str, content_type: str, accept: str, status: int, reason: str
) -> None:
    answer = runtime.client.post(
        "/v1/processes", content=content, headers={"Content-Type": content_type, "Accept": accept}
    )
    assert (answer.status_code, answer.json()["reason"]) == (status, reason)
    assert answer.json().keys() == {"code", "message", "reason"}


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/nosuch", 404),
        ("PUT", "/v1/processes", 405),
        ("GET", "/v1/processes/nosuch", 404),
        ("PUT", "/v1/health", 405),
    ],
)
def test_unknown_routes_under_v1_answer_in_its_shape(
    runtime: RuntimeServer, method: str, path: str, status: int
) -> None:
    answer = runtime.client.request(method, path)
    assert answer.status_code == status
    assert answer.json().keys() == {"code", "message", "reason"}


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/v1/processes", "GET, HEAD, POST"),
        ("/v1/processes/x", "DELETE, GET, HEAD"),
        ("/v1/processes/x/stdin", "POST"),
        ("/execute", "POST"),
        ("/", "GET"),
    ],
)
def test_a_method_that_is_not_served_is_told_those_that_are(
    runtime: RuntimeServer, path: str, allowed: str
) -> None:
    answer = runtime.client.request("PATCH", path)
    assert (answer.status_code, answer.headers["allow"]) == (405, allowed)


def test_a_reader_that_goes_away_takes_the_whole_tree_along(fresh_runtime: RuntimeServer) -> None:
    body = {"shell": "(trap '' TERM; setsid sleep 1000 & echo $! > pid); sleep 1000"}
    with fresh_runtime.client.stream("POST", "/v1/processes", json=body, headers=ACCEPT) as answer:
        events = read_events(answer)  # held on to: its end would close the connection
        leader = next(events).content["pid"]
        pid = read_pid(fresh_runtime.base / "pid")
    try:
        wait_until(lambda: not is_alive(pid) and not is_alive(leader), seconds=1)
        wait_until(lambda: fresh_runtime.running() == 0)
    finally:
        kill_quietly(pid)


def test_a_slow_reader_makes_the_command_wait_and_loses_nothing(
    fresh_runtime: RuntimeServer,
) -> None:
    (fresh_runtime.base / "write.py").write_text(
        "import os\n"
        "for n in range(640):\n"
        "    os.write(1, bytes([n % 251]) * 102400)\n"
        "    open('progress', 'w').write(str(n))\n"
    )
    before = fresh_runtime.resident_bytes()
    progress = fresh_runtime.base / "progress"
    body = {"argv": ["python3", "write.py"]}
    received = bytearray()
    with fresh_runtime.client.stream("POST", "/v1/processes", json=body, headers=ACCEPT) as answer:
        events = read_events(answer)
        next(events)
        wait_until(progress.exists)
        stood = -1
        while (now := int(progress.read_text() or 0)) != stood:
            stood = now
            threading.Event().wait(0.3)  # until it makes no more progress
        assert stood < 400
        assert fresh_runtime.resident_bytes() - before < 8 << 20
        for event in events:
            if event.name == "stdout":
                received += event.data
            else:
                assert event.content["exit_code"] == 0
    expected = b"".join(bytes([n % 251]) * 102400 for n in range(640))
    assert received == expected


def test_a_flood_leaves_memory_flat_and_health_quick(fresh_runtime: RuntimeServer) -> None:
    before = fresh_runtime.resident_bytes()
    body = {"argv": ["yes"], "timeout": 2}
    with (
        fresh_runtime.client.stream("POST", "/v1/processes", json=body, headers=ACCEPT) as answer,
        httpx.Client(base_url=fresh_runtime.url) as other,
    ):
        slowest, size, asked = 0.0, 0, 0.0
        for piece in answer.iter_raw():
            size += len(piece)
            if time.monotonic() - asked > 0.2:
                asked = time.monotonic()
                assert other.get("/v1/health").json()["running"] == 1 or asked
                slowest = max(slowest, time.monotonic() - asked)
    assert size > 1 << 20
    assert slowest < 0.3
    assert fresh_runtime.resident_bytes() - before < 16 << 20


def test_a_child_that_holds_the_pipe_does_not_hold_the_exit(fresh_runtime: RuntimeServer) -> None:
    started = time.monotonic()
    events = run(fresh_runtime, shell="sleep 1000 & echo $! > pid; echo hi")
    kill_quietly(read_pid(Path(fresh_runtime.base / "pid")))
    assert output(events, "stdout") == b"hi\n"
    assert ending(events) == (0, None, "exited")
    assert time.monotonic() - started < 2


def test_a_child_that_floods_the_pipe_does_not_hold_the_exit(fresh_runtime: RuntimeServer) -> None:
    started = time.monotonic()
    events = run(fresh_runtime, shell="yes & echo $! > pid")
    pid = read_pid(fresh_runtime.base / "pid")
    try:
        assert ending(events) == (0, None, "exited")
        assert time.monotonic() - started < 3
        assert len(output(events, "stdout")) < 2 << 20
        assert is_alive(pid)
    finally:
        kill_quietly(pid)


def test_what_is_born_and_orphaned_while_the_command_is_ended_is_killed_too(
    fresh_runtime: RuntimeServer,
) -> None:
    script = (
        "(trap '' TERM; sleep 0.5; sleep 1000 & echo $! > pid) & "
        "trap 'exit 5' TERM; while :; do wait; done"
    )
    events = run(fresh_runtime, shell=script, timeout=0.2)
    pid = read_pid(fresh_runtime.base / "pid")
    try:
        assert ending(events) == (5, None, "timeout")
        assert not is_alive(pid)
    finally:
        kill_quietly(pid)
