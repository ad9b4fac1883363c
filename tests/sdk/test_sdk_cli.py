"""The command line as a person starts it, against a scripted gateway."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from support.scripted_server import (
    PATIENCE,
    AwaitDisconnect,
    Close,
    ScriptedServer,
    Tell,
    Wait,
    chunk,
    event,
    exit_event,
    gateway_error,
    json_response,
    output_event,
    response,
    stream_head,
)

Cli = Callable[..., subprocess.CompletedProcess[bytes]]

PROCESSES = ("POST", "/v1/processes")
COMMAND = [sys.executable, "-m", "sandgate.cli"]
POOL = {
    "name": "python",
    "namespace": "default",
    "warm": 4,
    "max": 32,
    "ready": 3,
    "claimed": 1,
    "waiting": 0,
    "hit_rate": 0.75,
    "isolation": "bubblewrap",
    "last_error": None,
}


@pytest.fixture
def environment(server: ScriptedServer) -> dict[str, str]:
    """Return an environment that points at the scripted gateway."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SANDGATE_")}
    return {**kept, "SANDGATE_URL": server.url}


@pytest.fixture
def cli(environment: Mapping[str, str]) -> Cli:
    """Return what runs one command line to its end."""

    def run(*arguments: str, **more: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [*COMMAND, *arguments],
            env={**environment, **more},
            capture_output=True,
            check=False,
            timeout=60,
        )

    return run


@pytest.fixture
def claimed(server: ScriptedServer, claim: dict[str, object]) -> None:
    """Script the look-up of claim c-1, once, and the renewal that brings its token."""
    server.answer("POST", "/v1/claims/default/c-1/renew?uid=u-1", json_response(claim))
    shown = {name: value for name, value in claim.items() if "token" not in name}
    server.answer("GET", "/v1/claims/default/c-1", json_response(shown))


def test_claim_prints_the_claim_and_its_sandbox(
    server: ScriptedServer, cli: Cli, claim: dict[str, object]
) -> None:
    server.answer("POST", "/v1/claims", json_response(claim, status=201))
    done = cli(
        *("claim", "python", "--namespace", "team", "--name", "c-1", "--lease", "60"),
        *("--wait", "1", "--on-empty", "fail", "--label", "job=7=8"),
        SANDGATE_TOKEN="caller",
    )
    assert (done.returncode, done.stderr, done.stdout) == (0, b"", b"default/c-1 sb-1\n")
    (request,) = server.requests
    assert request.value("authorization") == "Bearer caller"
    assert request.json() == {
        "pool": "python",
        "namespace": "team",
        "name": "c-1",
        "lease_seconds": 60.0,
        "labels": {"job": "7=8"},
        "wait_seconds": 1.0,
        "on_empty": "fail",
    }


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_claim_says_on_standard_error_that_nothing_isolates(
    server: ScriptedServer, cli: Cli, claim: dict[str, object], form: list[str]
) -> None:
    for isolation, said in (("none", True), ("bubblewrap", False)):
        answer = json_response({**claim, "isolation": isolation}, status=201)
        server.answer("POST", "/v1/claims", answer)
        done = cli("claim", "python", *form)
        assert done.returncode == 0
        assert done.stderr.startswith(b"sandgate: isolation none: nothing keeps") is said
        assert b"isolation none" not in done.stdout


def test_claim_as_json_has_everything_a_program_needs(
    server: ScriptedServer, cli: Cli, claim: dict[str, object]
) -> None:
    server.answer("POST", "/v1/claims", json_response(claim, status=201))
    shown = json.loads(cli("claim", "python", "--json").stdout)
    assert shown["claim"] == "c-1"
    assert shown["sandbox"] == "sb-1"
    assert shown["token"] == "sg1.secret"
    assert shown["expires_at"] == "2026-11-30T11:00:00Z"


@pytest.mark.usefixtures("claimed")
def test_run_passes_raw_bytes_and_the_exit_code(server: ScriptedServer, cli: Cli) -> None:
    server.answer(
        *PROCESSES,
        stream_head(),
        chunk(output_event("stdout", b"\xff\x00out")),
        chunk(output_event("stderr", b"\xfeerr")),
        chunk(exit_event(7)),
        chunk(b""),
    )
    done = cli("run", "c-1", "--cwd", "d", "--env", "A=1", "--", "prog", "--url", "x", "-v")
    assert (done.returncode, done.stdout, done.stderr) == (7, b"\xff\x00out", b"\xfeerr")
    (request,) = server.received(*PROCESSES)
    assert request.json() == {
        "argv": ["prog", "--url", "x", "-v"],
        "cwd": "d",
        "env": {"A": "1"},
        "linger_seconds": 30,
    }


@pytest.mark.usefixtures("claimed")
def test_run_shows_output_while_the_command_runs(
    server: ScriptedServer, environment: Mapping[str, str]
) -> None:
    seen = threading.Event()
    server.answer(
        *PROCESSES,
        stream_head(),
        chunk(output_event("stdout", b"first\n")),
        Wait(seen),
        chunk(exit_event(0)),
        chunk(b""),
    )
    with subprocess.Popen(
        [*COMMAND, "run", "default/c-1", "--shell", "x"], env=environment, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"first\n"
        seen.set()
    assert process.returncode == 0


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.usefixtures("claimed")
def test_a_run_that_is_told_to_end_has_its_command_killed_first(
    server: ScriptedServer, environment: Mapping[str, str], sent: signal.Signals
) -> None:
    left = threading.Event()
    begun = event("started", {"id": "p-1", "pid": 7}) + output_event("stdout", b"up\n")
    server.answer(*PROCESSES, stream_head(), chunk(begun), AwaitDisconnect(left))
    server.answer("DELETE", "/v1/processes/p-1", response(204))
    with subprocess.Popen(
        [*COMMAND, "run", "c-1", "--", "sleep", "99"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        process.send_signal(sent)
        assert left.wait(PATIENCE)
        assert b"Traceback" not in process.communicate()[1]
    assert process.returncode == 128 + sent
    assert len(server.received("DELETE", "/v1/processes/p-1")) == 1


@pytest.mark.usefixtures("claimed")
def test_ctrl_c_is_the_commands_and_the_second_one_ends_the_program(
    server: ScriptedServer, environment: Mapping[str, str]
) -> None:
    left, told = threading.Event(), threading.Event()
    begun = event("started", {"id": "p-1", "pid": 7}) + output_event("stdout", b"up\n")
    known = {"id": "p-1", "pid": 7, "state": "running"}
    server.answer(
        *PROCESSES,
        stream_head(),
        chunk(begun),
        Wait(told),
        chunk(output_event("stdout", b"caught it\n")),
        AwaitDisconnect(left),
    )
    server.answer("GET", "/v1/processes/p-1", json_response(known))
    server.answer("POST", "/v1/processes/p-1/signal", Tell(told), response(204))
    server.answer("DELETE", "/v1/processes/p-1", response(204))
    with subprocess.Popen(
        [*COMMAND, "run", "c-1", "--", "sleep", "99"], env=environment, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == b"caught it\n"
        process.send_signal(signal.SIGINT)
        assert left.wait(PATIENCE)
    assert process.returncode == 130
    (sent,) = server.received("POST", "/v1/processes/p-1/signal")
    assert sent.json() == {"signal": "SIGINT"}
    assert len(server.received("DELETE", "/v1/processes/p-1")) == 1


@pytest.mark.usefixtures("claimed")
def test_a_reader_that_leaves_ends_the_run_in_silence(
    server: ScriptedServer, environment: Mapping[str, str]
) -> None:
    left = threading.Event()
    gone = threading.Event()
    server.answer(
        *PROCESSES,
        stream_head(),
        chunk(output_event("stdout", b"up\n")),
        Wait(gone),
        chunk(output_event("stdout", b"more\n")),
        AwaitDisconnect(left),
    )
    with subprocess.Popen(
        [*COMMAND, "run", "c-1", "--", "yes"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        gone.set()
        assert left.wait(PATIENCE)
        assert process.stderr.read() == b""
    assert process.returncode == 1


@pytest.mark.usefixtures("claimed")
def test_a_command_killed_by_its_timeout_says_so(server: ScriptedServer, cli: Cli) -> None:
    end = exit_event(137, signal=9, reason="timeout")
    server.answer(*PROCESSES, stream_head(), chunk(end), chunk(b""))
    done = cli("run", "c-1", "--timeout", "1.5", "--shell", "sleep 9")
    assert done.returncode == 124
    assert done.stderr.startswith(b"sandgate: the command ran into --timeout")
    (request,) = server.received(*PROCESSES)
    assert request.json() == {"shell": "sleep 9", "timeout": 1.5, "linger_seconds": 30}


@pytest.mark.usefixtures("claimed")
def test_run_as_json_is_one_value_and_keeps_the_exit_code(server: ScriptedServer, cli: Cli) -> None:
    server.answer(
        *PROCESSES,
        stream_head(),
        chunk(output_event("stdout", "é".encode()) + exit_event(3)),
        chunk(b""),
    )
    done = cli("run", "--json", "c-1", "--", "x")
    assert done.returncode == 3
    assert json.loads(done.stdout) == {
        "exit_code": 3,
        "signal": None,
        "reason": "exited",
        "duration": 0.25,
        "truncated": False,
        "stdout": "é",
        "stderr": "",
    }


@pytest.mark.usefixtures("claimed")
def test_a_run_whose_end_is_unknown_fails_and_warns(server: ScriptedServer, cli: Cli) -> None:
    started = event("started", {"id": "p", "pid": 1})
    server.answer(*PROCESSES, stream_head(), chunk(started), Close())
    done = cli("run", "c-1", "--", "x")
    assert done.returncode == 125
    assert b"may have run; look at what it did" in done.stderr


@pytest.mark.parametrize("place", ["c-1", "c-1:", "default/c-1:"])
@pytest.mark.usefixtures("claimed")
def test_ls_lists_the_working_directory(server: ScriptedServer, cli: Cli, place: str) -> None:
    entries = [
        {"name": "z" * 120, "size": 10, "type": "file", "modified_at": "1970-01-01T00:00:00Z"},
        {"name": "a [b]:smile:", "type": "directory", "modified_at": "2001-09-09T01:46:40Z"},
    ]
    server.answer("GET", "/v1/files/?recursive=false", json_response({"entries": entries}))
    lines = [line.rstrip() for line in cli("ls", place).stdout.decode().splitlines()]
    assert lines == [
        "SIZE  MODIFIED              NAME",
        "-     2001-09-09 01:46:40Z  a [b]:smile:/",
        "10    1970-01-01 00:00:00Z  " + "z" * 120,
    ]


@pytest.mark.usefixtures("claimed")
def test_ls_as_json(server: ScriptedServer, cli: Cli) -> None:
    time, target = "1970-01-01T00:00:00Z", "/v1/files/a%2Fb%3Ac?recursive=false"
    entry = {"name": "é", "size": 10, "type": "file", "modified_at": time, "mode": "0644"}
    server.answer("GET", target, json_response({"entries": [entry]}))
    (shown,) = json.loads(cli("ls", "c-1:a/b:c", "--json").stdout)
    assert shown == {
        "name": "é",
        "is_dir": False,
        "size": 10,
        "modified": time,
        "mode": "0644",
    }


@pytest.mark.parametrize(
    ("destination", "name"),
    [("c-1:d/x.bin", "d%2Fx.bin"), ("c-1:", "a%20b.bin"), ("c-1:d/", "d%2Fa%20b.bin")],
)
@pytest.mark.usefixtures("claimed")
def test_cp_copies_a_local_file_in(
    server: ScriptedServer, cli: Cli, tmp_path: Path, destination: str, name: str
) -> None:
    source = tmp_path / "a b.bin"
    source.write_bytes(b"\x00\xff")
    server.answer("PUT", f"/v1/files/{name}", response(204))
    done = cli("cp", str(source), destination, "--json")
    assert json.loads(done.stdout)["bytes"] == 2
    (request,) = server.received("PUT", f"/v1/files/{name}")
    assert request.body == b"\x00\xff"


@pytest.mark.usefixtures("claimed")
def test_cp_copies_a_file_of_the_sandbox_out_into_a_folder(
    server: ScriptedServer, cli: Cli, tmp_path: Path
) -> None:
    content = response(body=b"\x00\xff", content_type="application/octet-stream")
    server.answer("HEAD", "/v1/files/d%2Fx.bin", response())
    server.answer("GET", "/v1/files/d%2Fx.bin", content)
    done = cli("cp", "c-1:d/x.bin", str(tmp_path))
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert [path.name for path in tmp_path.iterdir()] == ["x.bin"]
    assert (tmp_path / "x.bin").read_bytes() == b"\x00\xff"


@pytest.mark.usefixtures("claimed")
def test_cp_that_fails_leaves_what_was_there(
    server: ScriptedServer, cli: Cli, tmp_path: Path
) -> None:
    (tmp_path / "x").write_bytes(b"old")
    content = response(body=b"new", content_type="application/octet-stream")
    server.answer("HEAD", "/v1/files/x", response())
    server.answer("GET", "/v1/files/x", content[:-1], Close())
    done = cli("cp", "c-1:x", str(tmp_path / "x"))
    assert done.returncode == 1
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    assert (tmp_path / "x").read_bytes() == b"old"


def test_release_takes_several_claims_and_is_content_with_ones_that_are_gone(
    server: ScriptedServer, cli: Cli
) -> None:
    server.answer("DELETE", "/v1/claims/default/c-1", response(204))
    server.answer("DELETE", "/v1/claims/team/c-2", response(204))
    done = cli("release", "c-1", "team/c-2", "--json")
    assert json.loads(done.stdout) == {"released": ["default/c-1", "team/c-2"]}


def test_pools_are_a_table_that_a_pipe_gets_uncut(server: ScriptedServer, cli: Cli) -> None:
    broken = {**POOL, "name": "gpu", "hit_rate": None, "last_error": "it " * 50}
    server.answer("GET", "/v1/pools", json_response({"pools": [POOL, broken]}))
    lines = cli("pools", COLUMNS="40").stdout.decode().splitlines()
    assert lines[0].split()[:3] == ["POOL", "READY", "CLAIMED"]
    assert " ".join(lines[1].split()) == "default/python 3 1 0 4 32 75% bubblewrap -"
    assert ("it " * 50).rstrip() in lines[2]
    assert len(lines) == 3


def test_pools_as_json(server: ScriptedServer, cli: Cli) -> None:
    server.answer("GET", "/v1/pools", json_response({"pools": [POOL]}))
    assert json.loads(cli("pools", "--json").stdout) == {"pools": [POOL]}


def test_version_is_the_distributions(cli: Cli) -> None:
    assert cli("version").stdout.count(b".") == 2


@pytest.mark.parametrize(
    ("status", "code", "advice"),
    [
        (401, "unauthenticated", "set SANDGATE_ROUTER_TOKEN or --router-token"),
        (404, "pool_not_found", "`sandgate pools` lists them"),
        (503, "pool_exhausted", "raise --wait"),
        (503, "draining", "try again in 4 s"),
        (409, "claim_exists", "choose another --name"),
        (501, "not_implemented", "Line one. Line two"),
    ],
)
def test_an_error_is_one_line_that_says_what_to_do(
    server: ScriptedServer, cli: Cli, status: int, code: str, advice: str
) -> None:
    fields = [("retry-after", "4")]
    detail = "Line one.\nLine two."
    server.answer("POST", "/v1/claims", gateway_error(status, code, detail=detail, fields=fields))
    done = cli("claim", "python")
    assert (done.returncode, done.stdout) == (1, b"")
    line = done.stderr.decode()
    assert line.startswith("sandgate: Line one. Line two")
    assert advice in line
    assert line.count("\n") == 1


def test_a_gateway_that_is_not_there_is_one_line_that_says_how_to_start_one(
    cli: Cli, dead_url: str
) -> None:
    done = cli("pools", "--url", dead_url)
    assert done.returncode == 1
    assert done.stderr.startswith(f"sandgate: cannot reach the gateway at {dead_url}".encode())
    assert b"`sandgate up`" in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_a_missing_local_file_is_one_line(cli: Cli) -> None:
    done = cli("cp", "/nowhere/x", "c-1:x")
    assert done.stderr == b"sandgate: /nowhere/x: No such file or directory\n"
    assert done.returncode == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["pools", "--url", "localhost:8080"],
        ["cat", "c-1"],
        ["cat", "c-1:"],
        ["port-forward", "c-1"],
        ["port-forward", "c-1", "0"],
        ["port-forward", "c-1", "1:65536"],
        ["renew"],
        ["completion", "tcsh"],
        ["cp", "a", "b"],
        ["cp", "c-1:a", "c-2:b"],
        ["cp", "./c-1:a", "b"],
        ["ls", "./x"],
        ["release"],
        ["release", "a/b/c"],
        ["claim", "python", "--label", "novalue"],
        ["claim", "python", "--on-empty", "pray"],
        ["nonsense"],
    ],
)
def test_wrong_usage_is_exit_code_2_and_sends_nothing(
    server: ScriptedServer, cli: Cli, arguments: list[str]
) -> None:
    done = cli(*arguments)
    assert done.returncode == 2
    assert b"Usage: sandgate" in done.stderr
    assert server.requests == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "c-1"],
        ["run", "c-1", "--shell", "x", "--", "y"],
        ["run", "NOT A CLAIM", "--", "x"],
        ["run", "c-1", "--timeout", "0", "--", "x"],
        ["run", "c-1", "--env", "novalue", "--", "x"],
        ["run", "c-1", "--tty", "--json", "--", "x"],
        ["shell"],
    ],
)
def test_wrong_usage_of_run_is_no_exit_code_that_a_command_would_have(
    server: ScriptedServer, cli: Cli, arguments: list[str]
) -> None:
    done = cli(*arguments)
    assert done.returncode == 125
    assert b"Usage: sandgate" in done.stderr
    assert server.requests == []


@pytest.mark.parametrize("name", ["--lease", "--wait"])
@pytest.mark.parametrize("value", ["nan", "inf"])
def test_seconds_that_nobody_can_wait_are_refused_in_one_line(
    server: ScriptedServer, cli: Cli, name: str, value: str
) -> None:
    done = cli("claim", "python", name, value)
    assert done.returncode == 2
    assert done.stderr == (
        f"sandgate: {name.strip('-')}_seconds {value} is not a finite number of seconds\n".encode()
    )
    assert server.requests == []


@pytest.mark.usefixtures("claimed")
def test_a_timeout_that_is_no_time_is_refused_in_one_line(cli: Cli) -> None:
    done = cli("run", "c-1", "--timeout", "nan", "--", "true")
    assert done.returncode == 125
    assert done.stderr.count(b"\n") == 1
    assert b"timeout nan is not a finite number" in done.stderr


def test_a_claim_whose_sandbox_died_says_of_what(
    server: ScriptedServer, cli: Cli, claim: dict[str, object]
) -> None:
    failed = {**claim, "state": "failed", "reason": "the runtime ended with exit code 137"}
    server.answer("GET", "/v1/claims/default/c-1", json_response(failed))
    done = cli("run", "c-1", "--", "true")
    assert done.returncode == 125
    assert done.stderr == (
        b"sandgate: the sandbox of default/c-1 failed: the runtime ended with exit code 137;"
        b" release the claim and make another with `sandgate claim`\n"
    )
    assert server.received(*PROCESSES) == []
