"""What a process reads from its standard input."""

import base64
import threading
import time
from collections.abc import Iterator

import httpx
import pytest
from support.process_events import ACCEPT, create, follow, output, read_events, run
from support.runtime_server import RuntimeServer


@pytest.mark.parametrize(
    ("stdin", "expected"),
    [
        (None, b""),
        ("", b""),
        ("hé", "hé".encode()),
        ({"text": "a\n"}, b"a\n"),
        ({"base64": base64.b64encode(bytes(range(256))).decode()}, bytes(range(256))),
    ],
)
def test_inline_input_arrives_exactly_and_ends(
    runtime: RuntimeServer, stdin: object, expected: bytes
) -> None:
    assert output(run(runtime, argv=["cat"], stdin=stdin)) == expected


def test_without_input_standard_input_is_dev_null(runtime: RuntimeServer) -> None:
    events = run(runtime, argv=["readlink", "/proc/self/fd/0"])
    assert output(events) == b"/dev/null\n"


def test_input_may_follow_piece_by_piece_until_it_ends(runtime: RuntimeServer) -> None:
    made = create(runtime, argv=["cat"], stdin={"text": "first ", "open": True}, linger_seconds=30)
    url = f"/v1/processes/{made['id']}/stdin"
    raw = {"Content-Type": "application/octet-stream"}
    answer = runtime.client.post(url, content=b"\xff\x00 ", headers=raw)
    assert answer.json() == {"written": 3, "open": True}
    answer = runtime.client.post(url, json={"base64": base64.b64encode(b"third ").decode()})
    assert answer.json() == {"written": 6, "open": True}
    answer = runtime.client.post(url, json={"text": "last", "eof": True})
    assert answer.json() == {"written": 4, "open": False}
    assert output(follow(runtime, made["id"])) == b"first \xff\x00 third last"


def test_an_end_may_come_alone_or_in_the_query(runtime: RuntimeServer) -> None:
    for content, query in ((b"", "?eof=1"), (b"x", "?eof=true")):
        made = create(runtime, argv=["cat"], stdin={"open": True}, linger_seconds=30)
        url = f"/v1/processes/{made['id']}/stdin{query}"
        raw = {"Content-Type": "application/octet-stream"}
        answer = runtime.client.post(url, content=content, headers=raw)
        assert answer.json() == {"written": len(content), "open": False}
        assert output(follow(runtime, made["id"])) == content


def test_a_hundred_megabytes_flow_both_ways_at_once_at_flat_memory(
    fresh_runtime: RuntimeServer,
) -> None:
    size, piece = 100 << 20, b"0123456789abcdef" * 16384
    before = fresh_runtime.resident_bytes()
    highest = 0

    def content() -> Iterator[bytes]:
        nonlocal highest
        for _ in range(size // len(piece)):
            highest = max(highest, fresh_runtime.resident_bytes())
            yield piece

    def write(url: str) -> None:
        raw = {"Content-Type": "application/octet-stream"}
        with httpx.Client(base_url=fresh_runtime.url, timeout=60) as client:
            answer = client.post(f"{url}?eof=1", content=content(), headers=raw)
            assert answer.json() == {"written": size, "open": False}

    body = {"argv": ["cat"], "stdin": {"open": True}}
    with fresh_runtime.client.stream("POST", "/v1/processes", json=body, headers=ACCEPT) as answer:
        events = read_events(answer)
        process = next(events).content["id"]
        writer = threading.Thread(target=write, args=(f"/v1/processes/{process}/stdin",))
        writer.start()
        received = 0
        for event in events:
            if event.name == "stdout":
                assert event.data[0] == b"0123456789abcdef"[received % 16]
                received += len(event.data)
        writer.join()
    assert received == size
    assert highest - before < 16 << 20


def test_a_process_that_ends_early_takes_what_it_reads_and_that_is_no_error(
    runtime: RuntimeServer,
) -> None:
    made = create(runtime, argv=["head", "-c", "5"], stdin={"open": True}, linger_seconds=30)
    url = f"/v1/processes/{made['id']}/stdin"
    raw = {"Content-Type": "application/octet-stream"}
    answer = runtime.client.post(url, content=b"x" * 10_000_000, headers=raw)
    assert answer.status_code == 200
    assert answer.json()["open"] is False
    assert 5 <= answer.json()["written"] < 10_000_000
    assert output(follow(runtime, made["id"])) == b"xxxxx"
    again = runtime.client.post(url, content=b"y", headers=raw)
    assert again.status_code == 409
    assert again.json()["reason"] in {"stdin_closed", "process_ended"}


def test_a_process_that_ignores_its_input_does_not_hold_its_exit(runtime: RuntimeServer) -> None:
    events = run(runtime, shell="sleep 0.3; echo on", stdin={"text": "x" * 1_000_000})
    assert output(events) == b"on\n"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"argv": ["sleep", "1000"], "detach": True}, "stdin_closed"),
        ({"argv": ["sleep", "1000"], "detach": True, "stdin": "inline"}, "stdin_closed"),
        ({"argv": ["nosuch"], "detach": True, "stdin": {"open": True}}, "process_ended"),
    ],
)
def test_input_for_a_process_that_takes_none_is_409(
    runtime: RuntimeServer, body: dict[str, object], reason: str
) -> None:
    made = create(runtime, **body)
    url = f"/v1/processes/{made['id']}"
    time.sleep(0.2 if "stdin" in body else 0)  # the inline input is written meanwhile
    answer = runtime.client.post(f"{url}/stdin", json={"text": "x"})
    assert (answer.status_code, answer.json()["reason"]) == (409, reason)
    runtime.client.delete(url)


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({"text": 1}, "text"),
        ({"base64": "?"}, "base64"),
        ({"eof": "yes"}, "eof"),
        ({"data": "x"}, "data"),
        ([], "object"),
    ],
)
def test_wrong_input_is_422(runtime: RuntimeServer, body: object, word: str) -> None:
    made = create(runtime, argv=["cat"], stdin={"open": True}, linger_seconds=30)
    url = f"/v1/processes/{made['id']}"
    answer = runtime.client.post(f"{url}/stdin", json=body)
    assert answer.status_code == 422
    assert word in answer.json()["message"]
    assert (
        runtime.client.post(
            f"{url}/stdin?eof=2", content=b"", headers={"Content-Type": "application/octet-stream"}
        ).status_code
        == 422
    )
    runtime.client.delete(url)
