"""`POST /execute` with the members that the upstream project does not know, and as frames."""

import base64
import json

import httpx
import pytest
from support.runtime_server import (
    RuntimeServer,
    is_alive,
    kill_quietly,
    read_pid,
    wait_until,
)

NDJSON = {"Accept": "application/x-ndjson"}


def frames(runtime: RuntimeServer, command: str, **members: object) -> list[dict[str, object]]:
    answer = runtime.client.post("/execute", json={"command": command, **members}, headers=NDJSON)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in answer.text.splitlines()]


def content(told: list[dict[str, object]], name: str) -> bytes:
    pieces = [base64.b64decode(str(frame["b"])) for frame in told if frame["t"] == name]
    return b"".join(pieces)


def test_a_shell_runs_the_whole_line(runtime: RuntimeServer) -> None:
    answer = runtime.run("echo a | tr a b; echo $((1+2))", shell=True)
    assert answer == {"stdout": "b\n3\n", "stderr": "", "exit_code": 0}


def test_cwd_env_and_stdin_are_what_the_command_gets(fresh_runtime: RuntimeServer) -> None:
    (fresh_runtime.base / "sub").mkdir()
    stdin = base64.b64encode(b"\xff\x00in").decode()
    answer = fresh_runtime.run(
        "pwd; echo $A; od -An -tx1", shell=True, cwd="sub", env={"A": "b"}, stdin_b64=stdin
    )
    assert answer["stdout"] == f"{fresh_runtime.base}/sub\nb\n ff 00 69 6e\n"


def test_input_that_the_command_does_not_read_is_no_error(runtime: RuntimeServer) -> None:
    stdin = base64.b64encode(b"x" * 5_000_000).decode()
    assert runtime.run("head -c 3", stdin_b64=stdin)["stdout"] == "xxx"
    assert runtime.run("wc -c", stdin_b64=stdin)["stdout"] == "5000000\n"


@pytest.mark.parametrize(
    ("command", "members", "code"),
    [
        ("kill -9 $$", {"shell": True}, 137),
        ("nosuch", {"env": {"A": "b"}}, 127),
        ("nosuch", {}, 1),
        ("/etc/passwd", {"cwd": "."}, 126),
        ("sh -c 'kill -9 $$'", {"stdin_b64": ""}, 137),
        ("sh -c 'kill -9 $$'", {}, -9),
        ("sh -c 'kill -9 $$'", {"shell": None}, -9),
        ("sleep 60", {"shell": True, "timeout_seconds": 0.2}, 124),
        ("sh -c 'kill -9 $$'", {"timeout_seconds": 30}, -9),
    ],
)
def test_one_new_member_brings_the_exit_codes_of_a_shell(
    runtime: RuntimeServer, command: str, members: dict[str, object], code: int
) -> None:
    assert runtime.run(command, **members)["exit_code"] == code


def test_a_long_script_goes_by_file(runtime: RuntimeServer) -> None:
    answer = runtime.run(f"printf %s {'y' * 200_000} | wc -c", shell=True)
    assert answer["stdout"] == "200000\n"


@pytest.mark.parametrize(
    ("command", "members", "out", "err", "last"),
    [
        (
            r"printf '\377\376ok'",
            {"shell": True},
            b"\xff\xfeok",
            b"",
            {"t": "exit", "code": 0, "truncated": {"out": 0, "err": 0}},
        ),
        (
            "sh -c 'echo out; echo err >&2; kill -9 $$'",
            {},
            b"out\n",
            b"err\n",
            {"t": "exit", "code": 137, "truncated": {"out": 0, "err": 0}},
        ),
        (
            "sh -c 'echo part; sleep 60'",
            {"timeout_seconds": 0.3},
            b"part\n",
            b"",
            {"t": "timeout", "seconds": 0.3},
        ),
        (
            "nosuch",
            {},
            b"",
            b"Failed to execute command: [Errno 2] No such file or directory: 'nosuch'\n",
            {"t": "exit", "code": 127, "truncated": {"out": 0, "err": 0}},
        ),
    ],
)
def test_frames_carry_bytes_and_one_end(
    runtime: RuntimeServer,
    command: str,
    members: dict[str, object],
    out: bytes,
    err: bytes,
    last: dict[str, object],
) -> None:
    told = frames(runtime, command, **members)
    assert (content(told, "out"), content(told, "err"), told[-1]) == (out, err, last)
    assert [frame["t"] for frame in told].count(str(last["t"])) == 1


def test_a_body_that_is_refused_is_so_with_frames_too(runtime: RuntimeServer) -> None:
    answer = runtime.client.post("/execute", json={"command": 1}, headers=NDJSON)
    assert answer.status_code == 422


def test_frames_lose_nothing_of_a_long_output(runtime: RuntimeServer) -> None:
    told = frames(runtime, "head -c 20000000 /dev/zero")
    assert len(content(told, "out")) == 20_000_000


def test_a_reader_of_frames_that_goes_takes_the_command_along(
    fresh_runtime: RuntimeServer,
) -> None:
    body = {"command": "setsid sleep 1000 & echo $! > pid; sleep 1000", "shell": True}
    with (
        httpx.Client(base_url=fresh_runtime.url) as client,
        client.stream("POST", "/execute", json=body, headers=NDJSON) as answer,
    ):
        assert answer.status_code == 200
        pid = read_pid(fresh_runtime.base / "pid")
    try:
        wait_until(lambda: not is_alive(pid))
    finally:
        kill_quietly(pid)
    wait_until(lambda: fresh_runtime.running() == 0)
