"""Processes that outlive the request that started them, and those that must not."""

import threading
import time
from pathlib import Path

import httpx
import pytest
from support.process_events import (
    ACCEPT,
    create,
    ending,
    follow,
    look,
    output,
    read_events,
    run,
    wait_for_events,
    wait_for_exit,
)
from support.runtime_server import (
    RuntimeServer,
    is_alive,
    kill_quietly,
    read_pid,
    start_runtime,
    wait_until,
)


def test_a_detached_process_runs_on_and_tells_everything_later(runtime: RuntimeServer) -> None:
    made = create(runtime, shell="echo one; sleep 0.3; echo two >&2; exit 3", detach=True)
    assert (made["state"], made["detach"], made["exit"]) == ("running", True, None)
    assert made["argv"] == ["/bin/sh", "-c", "echo one; sleep 0.3; echo two >&2; exit 3"]
    assert isinstance(made["pid"], int)
    events = follow(runtime, made["id"])
    assert [event.name for event in events] == ["started", "stdout", "stderr", "exit"]
    assert events[0].content == {"id": made["id"], "pid": made["pid"]}
    assert ending(events) == (3, None, "exited")
    known = look(runtime, made["id"])
    assert (known["state"], known["exit"]) == ("exited", events[-1].content)
    assert (known["first_event_id"], known["last_event_id"]) == (1, 4)
    again = follow(runtime, made["id"])
    assert [event.id for event in again] == [1, 2, 3, 4]


def test_without_watcher_linger_or_detach_nothing_is_started(runtime: RuntimeServer) -> None:
    for linger in (None, 0):
        body = {"shell": "touch started", "linger_seconds": linger}
        answer = runtime.client.post("/v1/processes", json=body)
        assert answer.status_code == 422
        assert "linger_seconds" in answer.json()["message"]
    assert not (runtime.base / "started").exists()


def test_an_unwatched_process_is_killed_with_its_tree_after_it_has_lingered(
    fresh_runtime: RuntimeServer,
) -> None:
    script = "setsid sleep 1000 & echo $! > pid; sleep 1000"
    started = time.monotonic()
    made = create(fresh_runtime, shell=script, linger_seconds=1)
    pid = read_pid(fresh_runtime.base / "pid")
    try:
        assert is_alive(pid)
        exit_ = wait_for_exit(fresh_runtime, made["id"])
        assert (exit_["exit_code"], exit_["reason"]) == (137, "killed")
        assert time.monotonic() - started >= 1
        assert not is_alive(pid)
    finally:
        kill_quietly(pid)


def test_a_watcher_in_time_keeps_a_lingering_process_alive(fresh_runtime: RuntimeServer) -> None:
    script = "while [ ! -e go ]; do sleep 0.05; done; echo done"
    made = create(fresh_runtime, shell=script, linger_seconds=1.5)
    url = f"/v1/processes/{made['id']}/events"
    with fresh_runtime.client.stream("GET", url) as answer:
        events = read_events(answer)
        next(events)
        threading.Event().wait(2.5)  # longer than it would linger
        assert is_alive(int(str(made["pid"])))
    wait_until(lambda: look(fresh_runtime, made["id"])["watchers"] == 0)
    # Nobody watches now; who comes back in time still finds it.
    (fresh_runtime.base / "go").touch()
    assert ending(follow(fresh_runtime, made["id"])) == (0, None, "exited")


def test_the_last_of_several_watchers_decides(fresh_runtime: RuntimeServer) -> None:
    url = fresh_runtime.url
    with httpx.Client(base_url=url) as first, httpx.Client(base_url=url) as second:
        body = {"argv": ["sleep", "1000"]}
        with first.stream("POST", "/v1/processes", json=body, headers=ACCEPT) as one:
            events = read_events(one)  # held on to: its end would close the connection
            started = next(events).content
            path = f"/v1/processes/{started['id']}"
            with second.stream("GET", f"{path}/events") as two:
                others = read_events(two)
                next(others)
                assert look(fresh_runtime, started["id"])["watchers"] == 2
                one.close()
                wait_until(lambda: look(fresh_runtime, started["id"])["watchers"] == 1)
                assert is_alive(started["pid"])
        wait_until(lambda: not is_alive(started["pid"]))
        assert wait_for_exit(fresh_runtime, started["id"])["reason"] == "killed"


def test_all_processes_are_listed_the_oldest_first(fresh_runtime: RuntimeServer) -> None:
    assert fresh_runtime.client.get("/v1/processes").json() == {"processes": []}
    first = create(fresh_runtime, argv=["sleep", "1000"], detach=True)
    second = create(fresh_runtime, argv=["true"], detach=True)
    wait_for_exit(fresh_runtime, second["id"])
    listed = fresh_runtime.client.get("/v1/processes").json()["processes"]
    assert [(one["id"], one["state"]) for one in listed] == [
        (first["id"], "running"),
        (second["id"], "exited"),
    ]
    assert fresh_runtime.running() == 1


def test_delete_ends_the_whole_tree_tells_watchers_and_forgets(
    fresh_runtime: RuntimeServer,
) -> None:
    script = "(trap '' TERM; setsid sleep 1000 & echo $! > pid); echo up; sleep 1000"
    made = create(fresh_runtime, shell=script, detach=True)
    pid = read_pid(fresh_runtime.base / "pid")
    url = f"/v1/processes/{made['id']}"
    with (
        httpx.Client(base_url=fresh_runtime.url) as other,
        other.stream("GET", f"{url}/events") as answer,
    ):
        events = read_events(answer)
        next(events)
        try:
            assert fresh_runtime.client.delete(url).status_code == 204
            assert not is_alive(pid)
            assert not is_alive(int(str(made["pid"])))
        finally:
            kill_quietly(pid)
        last = list(events)[-1]
    assert (last.name, last.content["reason"]) == ("exit", "killed")
    assert fresh_runtime.client.get(url).status_code == 404
    assert fresh_runtime.client.delete(url).status_code == 404


def test_delete_lets_a_process_clean_up_and_kills_it_after_two_seconds(
    fresh_runtime: RuntimeServer,
) -> None:
    for script, least in (
        ("trap 'touch cleaned; exit' TERM; echo up; while :; do sleep 0.05; done", 0.0),
        ("trap '' TERM; echo up; while :; do sleep 0.05; done", 2.0),
    ):
        made = create(fresh_runtime, shell=script, detach=True)
        wait_for_events(fresh_runtime, made["id"], 2)
        started = time.monotonic()
        assert fresh_runtime.client.delete(f"/v1/processes/{made['id']}").status_code == 204
        assert time.monotonic() - started >= least
    assert (fresh_runtime.base / "cleaned").exists()


def test_a_watcher_that_reads_nothing_holds_no_end_up(fresh_runtime: RuntimeServer) -> None:
    body = {"argv": ["yes"], "linger_seconds": 30}
    with (
        httpx.Client(base_url=fresh_runtime.url) as slow,
        slow.stream("POST", "/v1/processes", json=body, headers=ACCEPT) as answer,
    ):
        events = read_events(answer)
        process = next(events).content["id"]
        stood = -1
        while (now := int(str(look(fresh_runtime, process)["last_event_id"]))) != stood:
            stood = now
            threading.Event().wait(0.3)  # until the command waits for its reader
        assert fresh_runtime.client.delete(f"/v1/processes/{process}").status_code == 204
        assert fresh_runtime.running() == 0
        told = list(events)
    assert (told[-1].name, told[-1].content["reason"]) == ("exit", "killed")
    assert told[-1].content["truncated"] == {"stdout": 0, "stderr": 0}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", ""),
        ("DELETE", ""),
        ("GET", "/events"),
        ("POST", "/stdin"),
        ("POST", "/signal"),
        ("POST", "/resize"),
    ],
)
def test_an_unknown_process_is_404(runtime: RuntimeServer, method: str, path: str) -> None:
    answer = runtime.client.request(method, f"/v1/processes/nosuch{path}")
    assert (answer.status_code, answer.json()["reason"]) == (404, "process_not_found")


def test_a_program_that_cannot_be_run_is_found_again_with_its_exit_code(
    runtime: RuntimeServer,
) -> None:
    made = create(runtime, argv=["nosuch"], detach=True)
    assert (made["pid"], made["state"]) == (None, "exited")
    exit_ = made["exit"]
    assert isinstance(exit_, dict)
    assert exit_["exit_code"] == 127
    assert b"nosuch" in output(follow(runtime, made["id"]), "stderr")


def test_ended_processes_are_kept_up_to_a_number(tmp_path: Path) -> None:
    with start_runtime(tmp_path, env={"SANDGATE_KEEP_FINISHED": "3"}) as server:
        made = []
        for _ in range(5):
            made.append(create(server, argv=["true"], detach=True)["id"])
            wait_for_exit(server, made[-1])
        listed = server.client.get("/v1/processes").json()["processes"]
        assert [one["id"] for one in listed] == made[2:]


def test_ended_processes_are_forgotten_after_a_while_and_running_ones_are_not(
    tmp_path: Path,
) -> None:
    with start_runtime(tmp_path, env={"SANDGATE_KEEP_FINISHED_SECONDS": "0.3"}) as server:
        running = create(server, argv=["sleep", "1000"], detach=True)["id"]
        create(server, argv=["true"], detach=True)

        def listed() -> list[str]:
            processes = server.client.get("/v1/processes").json()["processes"]
            return [one["id"] for one in processes]

        wait_until(lambda: listed() == [running])


def test_ended_processes_are_kept_up_to_a_size(tmp_path: Path) -> None:
    env = {"SANDGATE_OUTPUT_BUFFER_BYTES": str(8 << 20)}
    with start_runtime(tmp_path, env=env) as server:
        made = [
            create(server, argv=["head", "-c", "7000000", "/dev/zero"], detach=True)["id"]
            for _ in range(4)
        ]
        wait_until(lambda: server.running() == 0)
        listed = {one["id"] for one in server.client.get("/v1/processes").json()["processes"]}
        assert len(listed) == 2
        assert listed < set(made)


def test_a_runtime_that_is_told_to_stop_takes_all_processes_along(tmp_path: Path) -> None:
    with start_runtime(tmp_path) as server:
        made = create(server, shell="setsid sleep 1000 & echo $! > pid; sleep 1000", detach=True)
        pid = read_pid(tmp_path / "pid")
        server.process.terminate()
        assert server.process.wait(10) == 0
    assert not is_alive(pid)
    assert not is_alive(int(str(made["pid"])))


def test_a_named_shell_runs_the_script(runtime: RuntimeServer) -> None:
    events = run(runtime, shell={"program": "bash", "script": "a=(1 2); echo ${a[1]}"})
    assert output(events) == b"2\n"
