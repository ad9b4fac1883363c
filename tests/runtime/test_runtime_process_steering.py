"""Signals, sizes of terminals, and what a command in a terminal is."""

import pytest
from support.process_events import (
    create,
    follow,
    look,
    output,
    run,
    wait_for_events,
    wait_for_exit,
)
from support.runtime_server import (
    RuntimeServer,
    is_alive,
    kill_quietly,
    read_pid,
)


@pytest.mark.parametrize(
    ("signal", "number"), [("SIGTERM", 15), ("int", 2), ("HUP", 1), (10, 10), ("SIGKILL", 9)]
)
def test_a_signal_reaches_the_group_and_its_death_is_told_as_killed(
    runtime: RuntimeServer, signal: object, number: int
) -> None:
    made = create(runtime, shell="echo up; exec sleep 1000", detach=True)
    wait_for_events(runtime, made["id"], 2)
    url = f"/v1/processes/{made['id']}/signal"
    assert runtime.client.post(url, json={"signal": signal}).status_code == 204
    exit_ = wait_for_exit(runtime, made["id"])
    assert (exit_["exit_code"], exit_["signal"]) == (128 + number, number)
    assert exit_["reason"] == "killed"
    answer = runtime.client.post(url, json={"signal": signal})
    assert (answer.status_code, answer.json()["reason"]) == (409, "process_ended")


def test_a_signal_that_the_command_handles_leaves_the_end_to_it(runtime: RuntimeServer) -> None:
    script = "trap 'echo caught; exit 7' USR1; echo up; while :; do sleep 0.02; done"
    made = create(runtime, shell=script, detach=True)
    wait_for_events(runtime, made["id"], 2)
    runtime.client.post(f"/v1/processes/{made['id']}/signal", json={"signal": "USR1"})
    exit_ = wait_for_exit(runtime, made["id"])
    assert (exit_["exit_code"], exit_["signal"], exit_["reason"]) == (7, None, "exited")
    assert output(follow(runtime, made["id"])) == b"up\ncaught\n"


def test_sigkill_takes_what_has_left_the_group_too(fresh_runtime: RuntimeServer) -> None:
    script = "(setsid sh -c 'echo $$ > pid; exec sleep 1000' &); sleep 1000"
    made = create(fresh_runtime, shell=script, detach=True)
    pid = read_pid(fresh_runtime.base / "pid")
    try:
        url = f"/v1/processes/{made['id']}/signal"
        assert fresh_runtime.client.post(url, json={"signal": "SIGKILL"}).status_code == 204
        assert wait_for_exit(fresh_runtime, made["id"])["reason"] == "killed"
        assert not is_alive(pid)
    finally:
        kill_quietly(pid)


@pytest.mark.parametrize(
    "body",
    [{}, {"signal": "SIGNOSUCH"}, {"signal": 0}, {"signal": 200}, {"signal": True}, {"sig": 15}],
)
def test_a_signal_that_is_none_is_422(runtime: RuntimeServer, body: object) -> None:
    made = create(runtime, argv=["sleep", "1000"], detach=True)
    url = f"/v1/processes/{made['id']}"
    assert runtime.client.post(f"{url}/signal", json=body).status_code == 422
    assert look(runtime, made["id"])["state"] == "running"
    runtime.client.delete(url)


def test_a_terminal_is_one_and_has_the_size_that_was_asked_for(runtime: RuntimeServer) -> None:
    script = "tty; stty size; test -t 0 && test -t 1 && test -t 2 && echo all; echo $TERM"
    events = run(runtime, shell=script, pty={"cols": 101, "rows": 33})
    lines = output(events).decode().split("\r\n")
    assert lines[0].startswith("/dev/pts/")
    assert lines[1:] == ["33 101", "all", "xterm-256color", ""]
    assert {event.name for event in events} == {"started", "stdout", "exit"}


def test_what_is_typed_is_echoed_and_an_end_ends_the_input(runtime: RuntimeServer) -> None:
    made = create(runtime, argv=["cat"], pty={"cols": 80, "rows": 24}, linger_seconds=30)
    url = f"/v1/processes/{made['id']}/stdin"
    assert runtime.client.post(url, json={"text": "typed\n"}).json()["open"] is True
    assert runtime.client.post(url, json={"eof": True}).status_code == 200
    events = follow(runtime, made["id"])
    assert output(events) == b"typed\r\ntyped\r\n"
    assert events[-1].content["exit_code"] == 0


def test_control_c_interrupts_the_foreground_program(runtime: RuntimeServer) -> None:
    script = "trap 'echo; echo stopped; exit 3' INT; echo up; while :; do sleep 0.05; done"
    made = create(runtime, shell=script, pty={"cols": 80, "rows": 24}, detach=True)
    wait_for_events(runtime, made["id"], 2)
    url = f"/v1/processes/{made['id']}/stdin"
    runtime.client.post(url, json={"text": "\x03"})
    assert wait_for_exit(runtime, made["id"])["exit_code"] == 3
    assert b"stopped" in output(follow(runtime, made["id"]))


def test_a_resize_reaches_the_program(runtime: RuntimeServer) -> None:
    script = "trap 'stty size; exit' WINCH; echo up; while :; do sleep 0.02; done"
    made = create(runtime, shell=script, pty={"cols": 80, "rows": 24}, detach=True)
    wait_for_events(runtime, made["id"], 2)
    url = f"/v1/processes/{made['id']}/resize"
    assert runtime.client.post(url, json={"cols": 132, "rows": 50}).status_code == 204
    wait_for_exit(runtime, made["id"])
    assert output(follow(runtime, made["id"])) == b"up\r\n50 132\r\n"


def test_a_size_that_is_none_or_has_no_terminal_is_refused(runtime: RuntimeServer) -> None:
    made = create(runtime, argv=["sleep", "1000"], detach=True)
    url = f"/v1/processes/{made['id']}"
    answer = runtime.client.post(f"{url}/resize", json={"cols": 80, "rows": 24})
    assert (answer.status_code, answer.json()["reason"]) == (409, "no_terminal")
    bodies: list[object] = [{"cols": 80}, {"cols": 0, "rows": 1}, {"cols": 80, "rows": "24"}, []]
    for body in bodies:
        assert runtime.client.post(f"{url}/resize", json=body).status_code == 422
    runtime.client.delete(url)


def test_a_terminal_whose_leader_has_ended_holds_no_exit(fresh_runtime: RuntimeServer) -> None:
    script = "setsid sh -c 'trap \"\" HUP; echo $$ > pid; sleep 1000' & sleep 0.3; echo out"
    events = run(fresh_runtime, shell=script, pty={"cols": 80, "rows": 24})
    pid = read_pid(fresh_runtime.base / "pid")
    kill_quietly(pid)
    assert output(events) == b"out\r\n"
    assert events[-1].content["exit_code"] == 0


def test_a_flood_in_a_terminal_loses_nothing(runtime: RuntimeServer) -> None:
    events = run(runtime, shell="seq 200000", pty={"cols": 80, "rows": 24})
    assert output(events) == b"".join(b"%d\r\n" % n for n in range(1, 200_001))
