"""How a process ended is told truly, and an end takes everything along."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.process_events import ACCEPT, Event, create, ending, output, read_events, run
from support.runtime_server import (
    RUNTIME,
    RuntimeServer,
    is_alive,
    kill_quietly,
    read_pid,
    start_runtime,
    wait_until,
)

from sandgate_runtime.processes.oom import OomEvidence, find_count


def test_an_exit_a_timeout_a_kill_and_a_limit_are_four_things(runtime: RuntimeServer) -> None:
    by_itself = run(runtime, shell="exit 137")
    timed_out = run(runtime, shell="trap '' TERM; sleep 1000", timeout=0.2)
    limited = run(runtime, argv=["yes"], output_limit_bytes=1000)
    body = {"argv": ["sleep", "1000"]}
    with runtime.client.stream("POST", "/v1/processes", json=body, headers=ACCEPT) as answer:
        events = read_events(answer)
        process = next(events).content["id"]
        assert runtime.client.delete(f"/v1/processes/{process}").status_code == 204
        killed = list(events)
    endings = [
        (told[-1].content["exit_code"], told[-1].content["signal"], told[-1].content["reason"])
        for told in (by_itself, timed_out, limited, killed)
    ]
    assert endings == [
        (137, None, "exited"),
        (137, 9, "timeout"),
        (137, 9, "output_limit"),
        (143, 15, "killed"),
    ]


def test_output_up_to_the_limit_is_told_and_the_rest_is_counted(runtime: RuntimeServer) -> None:
    script = "printf %010d 0; printf %010d 1 >&2; sleep 0.2; printf %010d 2; sleep 1000"
    events = run(runtime, shell=script, output_limit_bytes=25)
    assert output(events) + output(events, "stderr") == b"0" * 10 + b"0" * 5 + b"0" * 9 + b"1"
    content = events[-1].content
    assert (content["reason"], content["truncated"]) == ("output_limit", {"stdout": 5, "stderr": 0})
    exact = run(runtime, shell="printf 12345", output_limit_bytes=5)
    assert ending(exact) == (0, None, "exited")


def test_the_setting_limits_output_where_the_request_does_not(tmp_path: Path) -> None:
    with start_runtime(tmp_path, env={"SANDGATE_OUTPUT_LIMIT_BYTES": "1000"}) as server:
        events = run(server, argv=["yes"])
        assert (events[-1].content["reason"], len(output(events))) == ("output_limit", 1000)
        assert ending(run(server, shell="seq 1000", output_limit_bytes=10_000))[0] == 0


ESCAPES = {
    "child": "sleep 1000 & echo $! > pid; wait",
    "own session": "setsid sleep 1000 & echo $! > pid; wait",
    "double fork": "(setsid sh -c 'echo $$ > pid; exec sleep 1000' &) ; sleep 1000",
    "ignores signals": "(trap '' TERM HUP INT; setsid sh -c 'echo $$ > pid; sleep 1000' &); wait; "
    "sleep 1000",
    "kills its own group": "(setsid sh -c 'echo $$ > pid; exec sleep 1000' &) ; "
    "trap '' TERM; until [ -s pid ]; do sleep 0.01; done; kill -TERM 0; sleep 1000",
    "stopped": "setsid sh -c 'echo $$ > pid; kill -STOP $$' & sleep 1000",
}


@pytest.mark.parametrize("script", ESCAPES.values(), ids=ESCAPES)
@pytest.mark.parametrize("terminal", [False, True], ids=["pipes", "terminal"])
def test_nothing_escapes_when_the_reader_goes(
    fresh_runtime: RuntimeServer, script: str, terminal: bool
) -> None:
    pty = {"pty": {"cols": 80, "rows": 24}} if terminal else {}
    body = {"shell": script, **pty}
    with fresh_runtime.client.stream("POST", "/v1/processes", json=body, headers=ACCEPT) as answer:
        events = read_events(answer)  # held on to: its end would close the connection
        leader = next(events).content["pid"]
        pid = read_pid(fresh_runtime.base / "pid")
    try:
        wait_until(lambda: not is_alive(pid) and not is_alive(leader))
        wait_until(lambda: fresh_runtime.running() == 0)
    finally:
        kill_quietly(pid)


def test_a_command_that_kills_the_runtime_s_group_does_not_reach_it(
    fresh_runtime: RuntimeServer,
) -> None:
    events = run(fresh_runtime, shell="trap '' TERM; kill -TERM 0; kill -KILL 0")
    assert ending(events) == (137, 9, "exited")
    assert fresh_runtime.client.get("/v1/health").status_code == 200


def test_the_runtime_s_death_without_notice_takes_its_processes_along(tmp_path: Path) -> None:
    with start_runtime(tmp_path) as server:
        made = create(server, argv=["sleep", "1000"], detach=True)
        pid = int(str(made["pid"]))
        os.kill(server.process.pid, signal.SIGKILL)
        server.process.wait(10)
    wait_until(lambda: not is_alive(pid))


def test_kills_for_want_of_memory_are_claimed_one_by_one(tmp_path: Path) -> None:
    events = tmp_path / "memory.events"
    events.write_text("low 0\noom 2\noom_kill 2\noom_group_kill 0\n")
    evidence = OomEvidence(str(events))
    assert not evidence.claim()
    events.write_text("low 0\noom 4\noom_kill 4\noom_group_kill 0\n")
    assert [evidence.claim(), evidence.claim(), evidence.claim()] == [True, True, False]
    events.unlink()
    assert not evidence.claim()
    assert not OomEvidence(None).claim()
    assert find_count("0::/no/such/group\n") in {None, "/sys/fs/cgroup/memory.events"}
    assert find_count("3:cpu:/\n") is None


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A memory control group of 200 MB, where we may make one."""
    first = Path("/sys/fs/cgroup/memory")
    legacy = first.is_dir()
    parent = first if legacy else Path("/sys/fs/cgroup")
    group = parent / f"sandgate-test-{os.getpid()}"
    limit = "memory.limit_in_bytes" if legacy else "memory.max"
    try:
        group.mkdir()
        (group / limit).write_text("200000000")
    except OSError as error:
        pytest.skip(f"no memory control group can be made here: {error}")
    try:
        yield group
    finally:
        end = time.monotonic() + 10
        while True:
            try:
                group.rmdir()
                break
            except OSError:
                assert time.monotonic() < end
                time.sleep(0.05)


def test_a_command_that_the_kernel_kills_for_its_memory_is_told_so_and_the_server_lives(
    small_group: Path, tmp_path: Path
) -> None:
    (tmp_path / "take.py").write_text(
        "x = bytearray(400 << 20)\nfor i in range(0, len(x), 4096):\n    x[i] = 1\n"
    )
    enter = f'echo $$ > {small_group}/cgroup.procs; exec "$@"'
    command = ("sh", "-c", enter, "sh", *RUNTIME)
    with start_runtime(tmp_path, command=command) as server:
        events = run(server, argv=["python3", "take.py"])
        assert _told(events) == (137, 9, "oom")
        # A shell that outlives its child's death tells of it as 137.
        events = run(server, shell="python3 take.py; exit $?")
        assert _told(events)[::2] == (137, "oom")
        # A kill that has another cause is no evidence.
        assert ending(run(server, shell="kill -9 $$")) == (137, 9, "exited")
        assert server.client.get("/v1/health").status_code == 200


def _told(events: list[Event]) -> tuple[object, object, object]:
    content = events[-1].content
    return content["exit_code"], content["signal"], content["reason"]


BORN_AT_THE_END = (
    'trap \'setsid sh -c "echo \\$\\$ > pid; exec sleep 1000" & '
    "until [ -s pid ]; do :; done; exit 0' TERM; touch up; while :; do sleep 0.02; done"
)


def test_a_child_born_in_a_handler_of_the_end_does_not_survive_a_removal(
    fresh_runtime: RuntimeServer,
) -> None:
    made = create(fresh_runtime, shell=BORN_AT_THE_END, detach=True)
    wait_until((fresh_runtime.base / "up").exists)
    assert fresh_runtime.client.delete(f"/v1/processes/{made['id']}").status_code == 204
    pid = read_pid(fresh_runtime.base / "pid")
    try:
        assert not is_alive(pid)
    finally:
        kill_quietly(pid)


def test_nor_a_timeout_and_other_commands_are_left_alone(fresh_runtime: RuntimeServer) -> None:
    other = create(fresh_runtime, shell="setsid sleep 1000 & exit 0", detach=True)
    left = create(fresh_runtime, shell="setsid sleep 1000 & echo $! > left", detach=True)
    orphan = read_pid(fresh_runtime.base / "left")
    told = run(fresh_runtime, shell=BORN_AT_THE_END, timeout=0.5)
    assert told[-1].content["reason"] == "timeout"
    pid = read_pid(fresh_runtime.base / "pid")
    try:
        assert not is_alive(pid)
        assert is_alive(orphan)
    finally:
        kill_quietly(pid)
    for made in (other, left):
        fresh_runtime.client.delete(f"/v1/processes/{made['id']}")
