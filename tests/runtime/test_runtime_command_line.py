"""How the runtime is started and how it ends."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from support.runtime_server import (
    RUNTIME,
    RuntimeServer,
    build_environment,
    is_alive,
    kill_quietly,
    listen_unix,
    read_pid,
    start_runtime,
    wait_until,
)


def start_wrongly(base: Path, *arguments: str, **env: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*RUNTIME, *arguments],
        env=build_environment(base, **env),
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )


def test_all_faults_are_listed_at_once_and_nothing_listens(tmp_path: Path) -> None:
    result = start_wrongly(
        tmp_path,
        "--port",
        "65536",
        "--root",
        "/nosuch",
        SANDGATE_ISOLATED="yes",
        SANDBOX_EXEC_TIMEOUT_SECONDS="nan",
        SANDGATE_COMMAND_CPU_SECONDS="0",
        SANDGATE_COMMAND_MEMORY_BYTES="1G",
        SANDGATE_MAX_PROCESSES="-1",
        SANDGATE_SANDBOX_NAME="no-slash",
    )
    assert (result.returncode, result.stdout) == (2, "")
    for word in (
        "--port '65536'",
        "--root '/nosuch'",
        "SANDGATE_ISOLATED 'yes'",
        "SANDBOX_EXEC_TIMEOUT_SECONDS 'nan'",
        "SANDGATE_COMMAND_CPU_SECONDS '0'",
        "SANDGATE_COMMAND_MEMORY_BYTES '1G'",
        "SANDGATE_MAX_PROCESSES '-1'",
        "SANDGATE_SANDBOX_NAME 'no-slash'",
    ):
        assert word in result.stderr


@pytest.mark.parametrize(
    "arguments", [["--nosuch"], ["--fd", "x"], ["--fd", "99"], ["--fd", "0"], ["--relay-fd", "-1"]]
)
def test_a_wrong_argument_ends_with_2(tmp_path: Path, arguments: list[str]) -> None:
    assert start_wrongly(tmp_path, *arguments).returncode == 2


def test_a_port_that_is_taken_is_told_and_ends_with_1(
    runtime: RuntimeServer, tmp_path: Path
) -> None:
    result = start_wrongly(tmp_path, "--port", runtime.url.rpartition(":")[2])
    assert result.returncode == 1
    assert "cannot listen" in result.stderr


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_all_that_it_started(
    tmp_path: Path, signal_number: signal.Signals
) -> None:
    with start_runtime(tmp_path) as server:
        server.run("sh -c '(trap \"\" TERM HUP; setsid sleep 1000 & echo $! > left)'")
        left = read_pid(tmp_path / "left")
        body = {"shell": "trap '' TERM; echo $$ > live; while :; do sleep 1; done"}
        headers = {"Accept": "text/event-stream"}
        with server.client.stream("POST", "/v1/processes", json=body, headers=headers) as answer:
            live = read_pid(tmp_path / "live")
            started = time.monotonic()
            server.process.send_signal(signal_number)
            events = answer.read()
        assert server.process.wait(10) == 0
        assert time.monotonic() - started < 4
        assert b'"reason": "killed"' in events
    assert not is_alive(left)
    assert not is_alive(live)


@pytest.mark.parametrize("argument", [["--die-with-parent"], ["--die-with-parent", "PARENT"]])
def test_it_ends_with_its_parent_and_takes_everything_along(
    tmp_path: Path, argument: list[str]
) -> None:
    with listen_unix(tmp_path / "http") as listener:
        command = [*RUNTIME, "--fd", str(listener.fileno()), *argument]
        script = (
            "import os, subprocess, sys, time\n"
            "argv = [a.replace('PARENT', str(os.getpid())) for a in sys.argv[2:]]\n"
            "p = subprocess.Popen(argv, pass_fds=[int(sys.argv[1])])\n"
            "print(p.pid, flush=True)\n"
            "time.sleep(1000)\n"
        )
        parent = subprocess.Popen(
            [sys.executable, "-c", script, str(listener.fileno()), *command],
            env=build_environment(tmp_path),
            pass_fds=[listener.fileno()],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        try:
            transport = httpx.HTTPTransport(uds=str(tmp_path / "http"))
            with httpx.Client(transport=transport, base_url="http://sandbox") as client:
                body = {"command": "sh -c 'setsid sleep 1000 & echo $! > left'"}
                assert client.post("/execute", json=body).status_code == 200
            left = read_pid(tmp_path / "left")
            parent.kill()
            parent.wait()
            wait_until(lambda: not is_alive(pid), seconds=5)
            wait_until(lambda: not is_alive(left), seconds=1)
        finally:
            parent.kill()
            parent.wait()
            parent.stdout.close()
            kill_quietly(pid)


def test_it_does_not_start_when_its_parent_has_gone_already(tmp_path: Path) -> None:
    result = start_wrongly(tmp_path, "--port", "0", "--die-with-parent", str(os.getpid() + 1))
    assert (result.returncode, result.stdout) == (0, "")


def test_it_serves_an_inherited_unix_socket_silently(tmp_path: Path) -> None:
    with (
        listen_unix(tmp_path / "http") as listener,
        start_runtime(
            tmp_path,
            arguments=("--fd", str(listener.fileno())),
            pass_fds=(listener.fileno(),),
            url="http://sandbox",
        ) as server,
    ):
        transport = httpx.HTTPTransport(uds=str(tmp_path / "http"))
        with httpx.Client(transport=transport, base_url="http://sandbox") as client:
            answer = client.get("/v1/health")
            assert answer.json()["status"] == "ok"
            assert answer.headers["keep-alive"] == "timeout=75"
            assert "date" in answer.headers
            assert "server" not in answer.headers
            listing = client.post("/execute", json={"command": "ls -l /proc/self/fd"}).json()
        assert "socket:" not in listing["stdout"]
        server.process.terminate()
        server.process.wait(10)
        assert server.process.stdout is not None
        assert server.process.stdout.read() == ""


def test_modules_that_are_planted_in_the_base_directory_change_nothing(tmp_path: Path) -> None:
    for name in ("json.py", "uvicorn.py", "sitecustomize.py", "sandgate_runtime.py"):
        (tmp_path / name).write_text("raise SystemExit(77)\n")
    env = build_environment(tmp_path, PYTHONPATH=str(tmp_path))
    process = subprocess.Popen(
        [*RUNTIME, "--port", "0"], cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline().startswith("listening on http://127.0.0.1:")
    finally:
        process.terminate()
        process.wait(10)
        process.stdout.close()


def test_the_base_directory_is_trimmed_and_the_flag_wins(tmp_path: Path) -> None:
    for name in ("env", "flag"):
        (tmp_path / name).mkdir()
    with start_runtime(tmp_path, env={"SANDBOX_BASE_DIR": f"  {tmp_path}/env "}) as server:
        assert server.run("pwd")["stdout"] == f"{tmp_path}/env\n"
    arguments = ("--port", "0", "--root", f"{tmp_path}/flag")
    with start_runtime(tmp_path, arguments=arguments) as server:
        assert server.run("pwd")["stdout"] == f"{tmp_path}/flag\n"
