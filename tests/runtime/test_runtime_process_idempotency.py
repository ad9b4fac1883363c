"""A request that is repeated with its key never runs twice."""

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.process_events import ACCEPT, Event, follow, read_events, wait_for_exit
from support.runtime_server import RuntimeServer, start_runtime

KEY = {"Idempotency-Key": "k-1"}


def ask(
    runtime: RuntimeServer, key: str = "k-1", *, accept: str = "*/*", **body: object
) -> httpx.Response:
    headers = {"Idempotency-Key": key, "Accept": accept}
    with httpx.Client(base_url=runtime.url, timeout=30) as client:
        return client.post("/v1/processes", json=body, headers=headers)


def runs(base: Path) -> int:
    return (base / "ran").read_text().count("x")


ONCE: Any = {"shell": "echo x >> ran; echo out", "detach": True}


def test_the_same_key_gives_the_same_process(fresh_runtime: RuntimeServer) -> None:
    first = ask(fresh_runtime, **ONCE).json()
    wait_for_exit(fresh_runtime, first["id"])
    second = ask(fresh_runtime, **ONCE)
    assert (second.status_code, second.json()["id"]) == (201, first["id"])
    streamed = ask(fresh_runtime, accept=ACCEPT["Accept"], **ONCE)
    events = [Event(text) for text in streamed.text.split("\n\n") if text]
    assert events[0].content["id"] == first["id"]
    assert [event.name for event in events] == ["started", "stdout", "exit"]
    assert runs(fresh_runtime.base) == 1


@pytest.mark.parametrize("kept", [False, True], ids=["in memory", "on disk"])
def test_many_requests_at_once_start_one_process(tmp_path: Path, kept: bool) -> None:
    base, state = tmp_path / "base", tmp_path / "state"
    base.mkdir()
    state.mkdir()
    env = {"SANDGATE_STATE_DIR": str(state)} if kept else {}
    with start_runtime(base, env=env) as server, ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda _: ask(server, **ONCE), range(20)))
        assert {answer.status_code for answer in answers} == {201}
        assert len({answer.json()["id"] for answer in answers}) == 1
        wait_for_exit(server, answers[0].json()["id"])
    assert runs(base) == 1


def test_a_key_joins_the_stream_of_a_process_that_runs(fresh_runtime: RuntimeServer) -> None:
    body = {"shell": "echo x >> ran; echo one; while [ ! -e go ]; do sleep 0.01; done; echo two"}
    headers = {**ACCEPT, **KEY}
    with (
        httpx.Client(base_url=fresh_runtime.url) as other,
        fresh_runtime.client.stream("POST", "/v1/processes", json=body, headers=headers) as one,
        other.stream("POST", "/v1/processes", json=body, headers=headers) as two,
    ):
        first, second = read_events(one), read_events(two)
        assert next(first).content == next(second).content
        assert next(first).data == next(second).data == b"one\n"
        (fresh_runtime.base / "go").touch()
        assert [e.name for e in first] == [e.name for e in second] == ["stdout", "exit"]
    assert runs(fresh_runtime.base) == 1


def test_a_repeated_request_leaves_no_second_end_behind(fresh_runtime: RuntimeServer) -> None:
    body: Any = {"shell": "sleep 4; echo done", "linger_seconds": 2}
    first = ask(fresh_runtime, **body).json()["id"]
    assert ask(fresh_runtime, **body).json()["id"] == first
    events = follow(fresh_runtime, first)
    assert events[-1].content["reason"] == "exited"


def test_another_body_with_a_known_key_is_422(fresh_runtime: RuntimeServer) -> None:
    assert ask(fresh_runtime, **ONCE).status_code == 201
    answer = ask(fresh_runtime, shell="echo x >> ran", detach=True)
    assert (answer.status_code, answer.json()["reason"]) == (422, "idempotency_key_reused")
    assert ask(fresh_runtime, "k-2", **ONCE).status_code == 201


def test_a_refused_request_leaves_its_key_free(tmp_path: Path) -> None:
    with start_runtime(tmp_path, env={"SANDGATE_MAX_COMMANDS": "1"}) as server:
        blocking = ask(server, "other", argv=["sleep", "1000"], detach=True).json()["id"]
        for _ in range(2):
            answer = ask(server, **ONCE)
            assert (answer.status_code, answer.json()["reason"]) == (429, "process_limit")
        server.client.delete(f"/v1/processes/{blocking}")
        assert ask(server, **ONCE).status_code == 201


def test_a_key_whose_process_was_forgotten_is_409(fresh_runtime: RuntimeServer) -> None:
    made = ask(fresh_runtime, **ONCE).json()
    wait_for_exit(fresh_runtime, made["id"])
    assert fresh_runtime.client.delete(f"/v1/processes/{made['id']}").status_code == 204
    answer = ask(fresh_runtime, **ONCE)
    assert (answer.status_code, answer.json()["reason"]) == (409, "outcome_unknown")
    assert runs(fresh_runtime.base) == 1


@pytest.mark.parametrize("keys", [[""], ["a", "b"], ["x" * 256], ["é"]])
def test_a_key_that_is_none_is_422(runtime: RuntimeServer, keys: list[str]) -> None:
    headers = [(b"Idempotency-Key", key.encode()) for key in keys]
    fields = [(b"Content-Type", b"application/json"), *headers]
    answer = runtime.client.post("/v1/processes", content=json.dumps(ONCE), headers=fields)
    assert answer.status_code == 422
    assert "Idempotency-Key" in answer.json()["message"]


@pytest.mark.parametrize("way", ["SIGTERM", "SIGKILL"])
def test_after_a_restart_a_known_key_is_409_and_runs_nothing(tmp_path: Path, way: str) -> None:
    base, state = tmp_path / "base", tmp_path / "state"
    base.mkdir()
    state.mkdir()
    env = {"SANDGATE_STATE_DIR": str(state)}
    with start_runtime(base, env=env) as server:
        made = ask(server, **ONCE).json()
        wait_for_exit(server, made["id"])
        ask(server, "k-2", argv=["sleep", "1000"], detach=True)
        os.kill(server.process.pid, signal.Signals[way])
        server.process.wait(10)
    with start_runtime(base, env=env) as server:
        bodies: list[tuple[str, Any]] = [
            ("k-1", ONCE),
            ("k-2", {"argv": ["sleep", "1000"], "detach": True}),
        ]
        for key, body in bodies:
            answer = ask(server, key, **body)
            assert (answer.status_code, answer.json()["reason"]) == (409, "outcome_unknown")
        answer = ask(server, argv=["true"], detach=True)
        assert (answer.status_code, answer.json()["reason"]) == (422, "idempotency_key_reused")
        assert runs(base) == 1
        new = ask(server, "k-3", **ONCE).json()
        assert follow(server, new["id"])[-1].name == "exit"
    assert [path.name for path in state.iterdir()] == ["idempotency.jsonl"]
    assert "k-1" not in (state / "idempotency.jsonl").read_text()


def test_a_key_that_cannot_be_written_down_runs_nothing(tmp_path: Path) -> None:
    base, state = tmp_path / "base", tmp_path / "state"
    base.mkdir()
    state.mkdir()
    # Every write to it fails as on a full disk.
    (state / "idempotency.jsonl.new").symlink_to("/dev/full")
    full = start_runtime(base, env={"SANDGATE_STATE_DIR": str(state)})
    with pytest.raises(AssertionError), full as server:
        ask(server, **ONCE)
    assert not (base / "ran").exists()


@pytest.mark.parametrize("place", ["inside", "missing", "relative"])
def test_a_state_directory_that_commands_could_change_is_refused(
    tmp_path: Path, place: str
) -> None:
    (tmp_path / "state").mkdir()
    path = {"inside": str(tmp_path / "state"), "missing": "/nosuch", "relative": "state"}[place]
    with pytest.raises(AssertionError), start_runtime(tmp_path, env={"SANDGATE_STATE_DIR": path}):
        pass
