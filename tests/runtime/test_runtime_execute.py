"""`POST /execute`: the legacy contract and the traps that it used to have."""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from support.runtime_server import (
    RuntimeServer,
    is_alive,
    kill_quietly,
    read_pid,
    start_runtime,
    wait_until,
)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("echo hi", {"stdout": "hi\n", "stderr": "", "exit_code": 0}),
        (
            "sh -c 'echo out; echo err >&2; exit 3'",
            {"stdout": "out\n", "stderr": "err\n", "exit_code": 3},
        ),
        ("sh -c 'kill -9 $$'", {"stdout": "", "stderr": "", "exit_code": -9}),
        ("sh -c 'exit 137'", {"stdout": "", "stderr": "", "exit_code": 137}),
        ("echo $HOME '*' | cat", {"stdout": "$HOME * | cat\n", "stderr": "", "exit_code": 0}),
        (
            "nosuch --flag",
            {
                "stdout": "",
                "stderr": "Failed to execute command: "
                "[Errno 2] No such file or directory: 'nosuch'",
                "exit_code": 1,
            },
        ),
        (
            "/etc/passwd",
            {
                "stdout": "",
                "stderr": "Failed to execute command: [Errno 13] Permission denied: '/etc/passwd'",
                "exit_code": 1,
            },
        ),
        (
            "echo 'a",
            {
                "stdout": "",
                "stderr": "Failed to execute command: No closing quotation",
                "exit_code": 1,
            },
        ),
        (
            "",
            {
                "stdout": "",
                "stderr": "Failed to execute command: list index out of range",
                "exit_code": 1,
            },
        ),
        (
            "echo a\0b",
            {
                "stdout": "",
                "stderr": "Failed to execute command: embedded null byte",
                "exit_code": 1,
            },
        ),
    ],
)
def test_a_command_answers_as_the_contract_has_it(
    runtime: RuntimeServer, command: str, expected: dict[str, object]
) -> None:
    assert runtime.run(command) == expected


def test_a_command_runs_in_the_base_directory_with_no_input_in_a_session_of_its_own(
    runtime: RuntimeServer,
) -> None:
    assert runtime.run("pwd")["stdout"] == f"{runtime.base}\n"
    assert runtime.run("cat")["stdout"] == ""
    session, own = str(
        runtime.run("sh -c 'cut -d\" \" -f6 /proc/$$/stat; echo $$'")["stdout"]
    ).split()
    assert session == own


def test_output_that_is_not_utf_8_is_kept_with_the_true_exit_code(runtime: RuntimeServer) -> None:
    answer = runtime.run(r"sh -c 'printf \\377\\376ok; exit 5'")
    assert answer == {"stdout": "\ufffd\ufffdok", "stderr": "", "exit_code": 5}


@pytest.mark.parametrize(
    ("body", "location"),
    [
        ({}, ["body", "command"]),
        ({"command": 5}, ["body", "command"]),
        ([], ["body"]),
        ({"command": "true", "timeout_seconds": 0}, ["body", "timeout_seconds"]),
        ({"command": "true", "timeout_seconds": -1}, ["body", "timeout_seconds"]),
        ({"command": "true", "timeout_seconds": True}, ["body", "timeout_seconds"]),
        ({"command": "true", "timeout_seconds": "60"}, ["body", "timeout_seconds"]),
        ({"command": "true", "shell": "bash"}, ["body", "shell"]),
        ({"command": "true", "env": {"A=": "b"}}, ["body", "env"]),
        ({"command": "true", "env": {"A": 1}}, ["body", "env"]),
        ({"command": "true", "cwd": "nosuch"}, ["body", "cwd"]),
        ({"command": "true", "cwd": "../.."}, ["body", "cwd"]),
        ({"command": "true", "stdin_b64": "a"}, ["body", "stdin_b64"]),
    ],
)
def test_a_wrong_body_is_422_and_says_where(
    runtime: RuntimeServer, body: object, location: list[str]
) -> None:
    answer = runtime.client.post("/execute", json=body)
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["loc"] == location


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b'{"command": NaN', b"[" * 100_000])
def test_a_body_that_is_no_json_is_422(runtime: RuntimeServer, body: bytes) -> None:
    answer = runtime.client.post(
        "/execute", content=body, headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == 422


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999"])
def test_a_timeout_that_is_not_finite_is_refused(runtime: RuntimeServer, number: str) -> None:
    answer = runtime.client.post(
        "/execute",
        content=f'{{"command": "true", "timeout_seconds": {number}}}',
        headers={"Content-Type": "application/json"},
    )
    assert answer.status_code == 422


def test_members_that_mean_nothing_to_us_are_ignored_and_null_is_absent(
    runtime: RuntimeServer,
) -> None:
    assert runtime.run("echo hi", colour="red", timeout_seconds=None, env=None)["exit_code"] == 0


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", None])
def test_a_body_that_a_web_page_could_send_is_415(
    runtime: RuntimeServer, content_type: str | None
) -> None:
    headers = {} if content_type is None else {"Content-Type": content_type}
    answer = runtime.client.post("/execute", content=b'{"command": "true"}', headers=headers)
    assert answer.status_code == 415


def test_a_timeout_answers_124_with_what_was_printed_until_then(runtime: RuntimeServer) -> None:
    answer = runtime.run("sh -c 'echo part; echo bad >&2; sleep 60'", timeout_seconds=0.3)
    assert answer["stdout"] == "part\n"
    assert answer["stderr"] == (
        "bad\nFailed to execute command: Command "
        "'['sh', '-c', 'echo part; echo bad >&2; sleep 60']' timed out after 0.3 seconds"
    )
    assert (answer["exit_code"], answer["timed_out"]) == (124, True)


def test_a_request_cannot_ask_for_more_time_than_the_setting_gives(tmp_path: Path) -> None:
    with start_runtime(tmp_path, env={"SANDBOX_EXEC_TIMEOUT_SECONDS": "0.3"}) as server:
        for members in ({}, {"timeout_seconds": 60}):
            answer = server.run("sleep 60", **members)
            assert (answer["exit_code"], answer["timed_out"]) == (124, True)
            assert str(answer["stderr"]).endswith("timed out after 0.3 seconds")


ESCAPES = {
    "child": "sleep 1000 & echo $! > pid; wait",
    "own session": "setsid sleep 1000 & echo $! > pid; wait",
    "double fork": "(setsid sh -c 'echo $$ > pid; exec sleep 1000' &) ; sleep 1000",
    "ignores signals": (
        "(trap '' TERM HUP INT; setsid sh -c 'echo $$ > pid; sleep 1000' &); sleep 1000"
    ),
    "orphan in a clean environment": (
        "(env -i setsid sh -c '/bin/sh -c \"echo \\$\\$ > pid; exec sleep 1000\" &' &); sleep 1000"
    ),
}


@pytest.mark.parametrize("script", ESCAPES.values(), ids=ESCAPES)
def test_a_timeout_kills_all_that_the_command_started(
    fresh_runtime: RuntimeServer, script: str
) -> None:
    (fresh_runtime.base / "run.sh").write_text(script)
    answer = fresh_runtime.run("sh run.sh", timeout_seconds=1)
    pid = read_pid(fresh_runtime.base / "pid")
    try:
        assert answer["timed_out"]
        wait_until(lambda: not is_alive(pid), seconds=1)
    finally:
        kill_quietly(pid)


def test_a_timeout_leaves_other_commands_and_their_children_alone(
    fresh_runtime: RuntimeServer,
) -> None:
    fresh_runtime.run("sh -c 'setsid sleep 1000 & echo $! > other'")
    other = read_pid(fresh_runtime.base / "other")
    try:
        assert fresh_runtime.run("sleep 60", timeout_seconds=0.2)["timed_out"]
        assert is_alive(other)
    finally:
        kill_quietly(other)


def test_a_client_that_goes_away_takes_its_command_along(fresh_runtime: RuntimeServer) -> None:
    script = "sh -c 'setsid sleep 1000 & echo $! > pid; sleep 1000'"
    with httpx.Client(base_url=fresh_runtime.url) as client:

        def ask() -> None:
            with pytest.raises(httpx.ReadTimeout):
                client.post("/execute", json={"command": script}, timeout=1)

        thread = threading.Thread(target=ask)
        thread.start()
        pid = read_pid(fresh_runtime.base / "pid")
        assert fresh_runtime.running() == 1
        thread.join()
    try:
        wait_until(lambda: not is_alive(pid), seconds=1)
        wait_until(lambda: fresh_runtime.running() == 0)
    finally:
        kill_quietly(pid)


def test_a_child_in_the_background_neither_holds_the_answer_nor_dies_with_it(
    fresh_runtime: RuntimeServer,
) -> None:
    fresh_runtime.run("true")  # the connection of our client is open from here on
    before = fresh_runtime.descriptors(), fresh_runtime.threads()
    started = time.monotonic()
    answer = fresh_runtime.run(
        "sh -c '(while :; do echo noise; sleep 0.01; done) & echo $! > pid; echo hi'"
    )
    assert time.monotonic() - started < 2
    pid = read_pid(fresh_runtime.base / "pid")
    try:
        assert answer["exit_code"] == 0
        assert "hi\n" in str(answer["stdout"])
        threading.Event().wait(0.3)  # it writes to its pipe meanwhile
        assert is_alive(pid)
    finally:
        kill_quietly(pid)
    wait_until(lambda: (fresh_runtime.descriptors(), fresh_runtime.threads()) == before)


def test_all_that_the_command_wrote_arrives_though_a_child_holds_the_pipe(
    runtime: RuntimeServer,
) -> None:
    answer = runtime.run("sh -c 'sleep 0.5 & head -c 60000 /dev/zero | tr \\\\0 x'")
    assert answer["stdout"] == "x" * 60_000


def test_two_full_streams_do_not_block_each_other(runtime: RuntimeServer) -> None:
    answer = runtime.run(
        "python3 -c 'import sys\nfor _ in range(64): "
        'sys.stdout.write("o" * 16384); sys.stderr.write("e" * 16384)\''
    )
    assert answer["stdout"] == "o" * (1 << 20)
    assert answer["stderr"] == "e" * (1 << 20)


def test_a_long_output_keeps_its_first_and_last_8_mib_at_bounded_memory(
    fresh_runtime: RuntimeServer,
) -> None:
    before = fresh_runtime.resident_bytes()
    answer = fresh_runtime.run(
        'python3 -c \'import sys; w = sys.stdout.write; w("A"); '
        '[w("x" * 1048576) for _ in range(100)]; w("Z"); sys.exit(9)\''
    )
    output = str(answer["stdout"])
    assert (len(output), output[0], output[-1]) == (16 << 20, "A", "Z")
    assert (answer["truncated"], answer["exit_code"]) == (True, 9)
    assert fresh_runtime.resident_bytes() - before < 48 << 20


def test_ten_commands_run_at_the_same_time(runtime: RuntimeServer) -> None:
    started = time.monotonic()
    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(lambda n: runtime.run(f"sh -c 'sleep 1; echo {n}'"), range(10)))
    assert [answer["stdout"] for answer in answers] == [f"{n}\n" for n in range(10)]
    assert time.monotonic() - started < 4


def test_two_megabytes_of_command_hold_nobody_else_up(runtime: RuntimeServer) -> None:
    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(runtime.execute, "echo '" + "x" * 2_000_000 + "'" + " ''" * 300_000)
        slowest = 0.0
        with httpx.Client(base_url=runtime.url) as other:
            while not pending.done():
                started = time.monotonic()
                assert other.get("/v1/health").status_code == 200
                slowest = max(slowest, time.monotonic() - started)
        answer = pending.result()
    assert answer.status_code == 413
    assert answer.json()["reason"] == "argument_too_long"
    assert slowest < 0.3


@pytest.mark.parametrize("shell", ["sh -c", "bash -c", "bash -euo pipefail -c", "/bin/sh -e -c"])
def test_a_script_too_long_for_an_argument_runs_with_its_name_and_parameters(
    runtime: RuntimeServer, shell: str
) -> None:
    script = f"printf %s {'y' * 200_000} | wc -c; echo $0 $1; exit 4"
    answer = runtime.run(f"{shell} '{script}' zero one")
    assert answer == {"stdout": "200000\nzero one\n", "stderr": "", "exit_code": 4}


def test_a_script_of_many_megabytes_arrives_whole(fresh_runtime: RuntimeServer) -> None:
    content = "0123456789abcdef" * 262_144
    script = f"cat > big <<X\n{content}\nX\n"
    assert fresh_runtime.run(f"sh -c '{script}'")["exit_code"] == 0
    assert (fresh_runtime.base / "big").read_text() == content + "\n"


def test_a_body_above_the_limit_is_413(runtime: RuntimeServer) -> None:
    body = json.dumps({"command": "x" * (32 << 20)}).encode()
    answer = runtime.client.post(
        "/execute", content=body, headers={"Content-Type": "application/json"}
    )
    assert (answer.status_code, answer.json()["reason"]) == (413, "content_too_large")


def test_the_runtime_s_own_settings_are_hidden_from_commands(tmp_path: Path) -> None:
    env = {"SANDGATE_SECRET": "s3cret", "VISIBLE": "yes", "SANDBOX_EXEC_TIMEOUT_SECONDS": "9"}
    with start_runtime(tmp_path, env=env) as server:
        lines = str(server.run("env")["stdout"]).splitlines()
    names = {line.partition("=")[0] for line in lines}
    assert {"PATH", "HOME", "LANG", "VISIBLE"} <= names
    told = {name for name in names if name.startswith(("SANDGATE_", "SANDBOX_"))}
    assert told == {"SANDBOX_PROCESS_ID"}


def test_health_answers_the_legacy_way_too(runtime: RuntimeServer) -> None:
    assert runtime.client.get("/").json() == {
        "status": "ok",
        "message": "Sandbox Runtime is active.",
    }
    for method in ("HEAD", "OPTIONS", "POST"):
        assert runtime.client.request(method, "/").status_code == 405


def test_many_short_commands_leave_no_process_and_no_descriptor_behind(
    fresh_runtime: RuntimeServer,
) -> None:
    fresh_runtime.run("true")
    before = fresh_runtime.descriptors()
    for _ in range(300):
        assert fresh_runtime.run("sh -c '(true &) &'")["exit_code"] == 0
    pid = fresh_runtime.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children")
    wait_until(lambda: not children.read_text().strip())
    wait_until(lambda: fresh_runtime.descriptors() == before)
