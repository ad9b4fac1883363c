"""Who was cut off goes on where it was, or is told that it cannot."""

from pathlib import Path

import pytest
from support.process_events import (
    ACCEPT,
    create,
    follow,
    look,
    output,
    read_events,
    wait_for_exit,
)
from support.runtime_server import RuntimeServer, start_runtime, wait_until

STEPS = "for n in $(seq 30); do echo $n; sleep 0.02; done"


def test_a_stream_that_was_cut_goes_on_behind_the_last_event(fresh_runtime: RuntimeServer) -> None:
    body = {"shell": STEPS, "linger_seconds": 30}
    with fresh_runtime.client.stream("POST", "/v1/processes", json=body, headers=ACCEPT) as answer:
        events = read_events(answer)
        first = [next(events) for _ in range(10)]
    process = first[0].content["id"]
    rest = follow(fresh_runtime, process, after=10)
    assert [event.id for event in rest] == list(range(11, rest[-1].id + 1))
    assert [event.name for event in first + rest].count("exit") == 1
    whole = output(first + rest).split()
    assert whole == [str(n).encode() for n in range(1, 31)]
    # A finished run answers the same, as often as it is asked.
    assert [event.id for event in follow(fresh_runtime, process, after=10)] == [
        event.id for event in rest
    ]
    assert follow(fresh_runtime, process, after=rest[-1].id) == []


def test_what_is_kept_no_more_is_410_with_the_first_event_that_is_left(tmp_path: Path) -> None:
    with start_runtime(tmp_path, env={"SANDGATE_OUTPUT_BUFFER_BYTES": "100000"}) as server:
        made = create(server, argv=["head", "-c", "1000000", "/dev/zero"], detach=True)
        exit_ = wait_for_exit(server, made["id"])
        url = f"/v1/processes/{made['id']}/events"
        for headers in ({}, {"Last-Event-ID": "1"}, {"Last-Event-ID": "100000"}):
            answer = server.client.get(url, headers=headers)
            assert answer.status_code == 410
            assert answer.json()["code"] == "OUT_OF_RANGE"
        first = answer.json()["first_id"]
        assert first == look(server, made["id"])["first_event_id"]
        events = follow(server, made["id"], after=first - 1)
        assert events[0].id == first
        kept = len(output(events))
        assert 0 < kept <= 100_000
        assert exit_["truncated"] == {"stdout": 1_000_000 - kept, "stderr": 0}
        assert exit_["exit_code"] == 0


def test_an_unwatched_flood_keeps_its_newest_output_at_flat_memory(tmp_path: Path) -> None:
    (tmp_path / "flood.py").write_text(
        "import os\nfor n in range(3000): os.write(1, b'%08d' % n + b'x' * 65000)\n"
    )
    with start_runtime(tmp_path) as server:
        before = server.resident_bytes()
        made = create(server, argv=["python3", "flood.py"], detach=True)
        exit_ = wait_for_exit(server, made["id"], seconds=60)
        assert server.resident_bytes() - before < 16 << 20
        first = int(str(look(server, made["id"])["first_event_id"]))
        kept = output(follow(server, made["id"], after=first - 1))
        whole = b"".join(b"%08d" % n + b"x" * 65000 for n in range(2900, 3000))
        assert whole.endswith(kept)
        truncated = exit_["truncated"]
        assert isinstance(truncated, dict)
        assert truncated["stdout"] == 3000 * 65008 - len(kept)


def test_what_a_watcher_was_given_counts_as_kept(tmp_path: Path) -> None:
    with start_runtime(tmp_path, env={"SANDGATE_OUTPUT_BUFFER_BYTES": "50000"}) as server:
        body = {"argv": ["head", "-c", "2000000", "/dev/zero"]}
        with server.client.stream("POST", "/v1/processes", json=body, headers=ACCEPT) as answer:
            events = list(read_events(answer))
    assert len(output(events)) == 2_000_000
    assert events[-1].content["truncated"] == {"stdout": 0, "stderr": 0}


def test_a_slow_watcher_that_leaves_sets_a_waiting_process_free(
    fresh_runtime: RuntimeServer,
) -> None:
    body = {"shell": "head -c 20000000 /dev/zero; touch done", "detach": True}
    with fresh_runtime.client.stream("POST", "/v1/processes", json=body, headers=ACCEPT) as answer:
        events = read_events(answer)
        process = next(events).content["id"]
        assert not (fresh_runtime.base / "done").exists()
    wait_until((fresh_runtime.base / "done").exists)
    assert wait_for_exit(fresh_runtime, process)["exit_code"] == 0


@pytest.mark.parametrize("value", ["x", "-1", "1.5", "9" * 16, "٣".encode()])
def test_a_last_event_id_that_is_none_is_422(runtime: RuntimeServer, value: str | bytes) -> None:
    made = create(runtime, argv=["true"], detach=True)
    headers = {"Last-Event-ID": value}
    url = f"/v1/processes/{made['id']}/events"
    assert runtime.client.get(url, headers=headers).status_code == 422  # type: ignore[arg-type]
