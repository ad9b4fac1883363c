"""A client of the runtime's event streams."""

import base64
import json
import time
from collections.abc import Iterator

import httpx
from support.runtime_server import RuntimeServer, wait_until

ACCEPT = {"Accept": "text/event-stream"}


class Event:
    """One event as it came."""

    def __init__(self, text: str) -> None:
        lines = dict(line.split(": ", 1) for line in text.splitlines())
        self.id = int(lines["id"])
        self.name = lines["event"]
        self.content = json.loads(lines["data"])

    @property
    def data(self) -> bytes:
        return base64.b64decode(self.content["data"], validate=True)


def read_events(answer: httpx.Response) -> Iterator[Event]:
    """Yield the events of an answer; comments are passed over."""
    buffer = ""
    for piece in answer.iter_text():
        buffer += piece
        while "\n\n" in buffer:
            text, buffer = buffer.split("\n\n", 1)
            if not text.startswith(":"):
                yield Event(text)
    assert buffer == ""


def run(runtime: RuntimeServer, **body: object) -> list[Event]:
    """Run a command and return all its events, which begin and end as they must."""
    with runtime.client.stream("POST", "/v1/processes", json=body, headers=ACCEPT) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"] == "text/event-stream"
        events = list(read_events(answer))
    assert [event.id for event in events] == list(range(1, len(events) + 1))
    assert [event.name for event in events].count("exit") == 1
    assert (events[0].name, events[-1].name) == ("started", "exit")
    return events


def output(events: list[Event], name: str = "stdout") -> bytes:
    """Return what was printed to one stream."""
    return b"".join(event.data for event in events if event.name == name)


def ending(events: list[Event]) -> tuple[object, object, object]:
    """Return exit code, signal and reason; nothing was dropped."""
    content = events[-1].content
    assert content["truncated"] == {"stdout": 0, "stderr": 0}
    return content["exit_code"], content["signal"], content["reason"]


def create(runtime: RuntimeServer, **body: object) -> dict[str, object]:
    """Start a process that nobody watches; return what is known of it."""
    answer = runtime.client.post("/v1/processes", json=body)
    assert answer.status_code == 201, answer.text
    made = answer.json()
    assert isinstance(made, dict)
    assert answer.headers["location"] == f"/v1/processes/{made['id']}"
    return made


def look(runtime: RuntimeServer, process: object) -> dict[str, object]:
    """Return what is known of a process."""
    answer = runtime.client.get(f"/v1/processes/{process}")
    assert answer.status_code == 200, answer.text
    known = answer.json()
    assert isinstance(known, dict)
    return known


def wait_for_events(runtime: RuntimeServer, process: object, count: int) -> None:
    """Wait until a process has had as many events."""
    wait_until(lambda: int(str(look(runtime, process)["last_event_id"])) >= count)


def wait_for_exit(
    runtime: RuntimeServer, process: object, *, seconds: float = 10
) -> dict[str, object]:
    """Return how a process ended, once it has."""
    end = time.monotonic() + seconds
    while (found := look(runtime, process)["exit"]) is None:
        assert time.monotonic() < end, "it did not end in time"
        time.sleep(0.01)
    assert isinstance(found, dict)
    return found


def follow(runtime: RuntimeServer, process: object, *, after: int | None = None) -> list[Event]:
    """Return the events of a process up to its end."""
    headers = {} if after is None else {"Last-Event-ID": str(after)}
    url = f"/v1/processes/{process}/events"
    with runtime.client.stream("GET", url, headers=headers) as answer:
        assert answer.status_code == 200, answer.read()
        return list(read_events(answer))
