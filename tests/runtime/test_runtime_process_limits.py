"""What a sandbox may take of its runtime is bounded by settings."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.process_events import ACCEPT, create, output, read_events, run
from support.runtime_server import RUNTIME, start_runtime, wait_until


def test_commands_at_once_are_bounded_for_both_entries(tmp_path: Path) -> None:
    with start_runtime(tmp_path, env={"SANDGATE_MAX_COMMANDS": "2"}) as server:
        made = [create(server, argv=["sleep", "1000"], detach=True)["id"] for _ in range(2)]
        answer = server.client.post("/v1/processes", json={"argv": ["true"]}, headers=ACCEPT)
        assert (answer.status_code, answer.json()["reason"]) == (429, "process_limit")
        assert "2 commands" in str(server.run("true")["stderr"])
        server.client.delete(f"/v1/processes/{made[0]}")
        assert server.run("true")["exit_code"] == 0


def test_requests_at_once_are_bounded_but_for_health(tmp_path: Path) -> None:
    with start_runtime(tmp_path, env={"SANDGATE_MAX_REQUESTS": "1"}) as server:
        body = {"argv": ["sleep", "1000"]}
        with (
            server.client.stream("POST", "/v1/processes", json=body, headers=ACCEPT) as answer,
            httpx.Client(base_url=server.url) as other,
        ):
            events = read_events(answer)
            next(events)
            refused = other.post("/execute", json={"command": "true"})
            assert (refused.status_code, refused.json()["reason"]) == (429, "too_many_requests")
            assert other.get("/v1/health").status_code == 200
            assert other.get("/").status_code == 200
        wait_until(lambda: server.execute("true").status_code == 200)


@pytest.mark.parametrize(
    "sent", [{"json": {"text": "x" * 500_000}}, {"content": b"x" * 500_000}], ids=["json", "raw"]
)
def test_input_that_its_client_gave_up_holds_no_request(
    tmp_path: Path, sent: dict[str, Any]
) -> None:
    if "content" in sent:
        sent = {**sent, "headers": {"Content-Type": "application/octet-stream"}}
    with start_runtime(tmp_path, env={"SANDGATE_MAX_REQUESTS": "1"}) as server:
        made = create(server, argv=["sleep", "1000"], stdin={"open": True}, detach=True)
        with (
            httpx.Client(base_url=server.url, timeout=0.5) as other,
            pytest.raises(httpx.TimeoutException),
        ):
            other.post(f"/v1/processes/{made['id']}/stdin", **sent)
        wait_until(lambda: server.client.get("/v1/processes").status_code == 200)


def test_a_busy_runtime_still_signals_and_removes(tmp_path: Path) -> None:
    with start_runtime(tmp_path, env={"SANDGATE_MAX_REQUESTS": "1"}) as server:
        body = {"argv": ["sleep", "1000"]}
        with (
            server.client.stream("POST", "/v1/processes", json=body, headers=ACCEPT) as answer,
            httpx.Client(base_url=server.url) as other,
        ):
            events = read_events(answer)
            url = f"/v1/processes/{next(events).content['id']}"
            assert other.get(url).status_code == 429
            assert other.post(f"{url}/signal", json={"signal": "SIGCONT"}).status_code == 204
            assert other.delete(url).status_code == 204
            assert list(events)[-1].content["reason"] == "killed"


def test_json_bodies_are_bounded(tmp_path: Path) -> None:
    with start_runtime(tmp_path, env={"SANDGATE_MAX_JSON_BYTES": "1000"}) as server:
        for path, body in (
            ("/v1/processes", {"shell": "x" * 1000}),
            ("/execute", {"command": "x" * 1000}),
        ):
            answer = server.client.post(path, json=body)
            assert (answer.status_code, answer.json()["reason"]) == (413, "content_too_large")


def test_open_files_of_a_command_are_those_of_the_setting_or_of_the_start(
    tmp_path: Path,
) -> None:
    limited = {"SANDGATE_COMMAND_OPEN_FILES": "100"}
    with start_runtime(tmp_path, env=limited) as server:
        events = run(server, shell="ulimit -Sn; ulimit -Hn")
        assert output(events) == b"100\n100\n"
    low = ("sh", "-c", 'ulimit -Sn 200; exec "$@"', "sh")
    with start_runtime(tmp_path, command=(*low, *RUNTIME)) as server:
        assert output(run(server, shell="ulimit -Sn")) == b"200\n"
        limits = Path(f"/proc/{server.process.pid}/limits").read_text()
        soft = next(line for line in limits.splitlines() if line.startswith("Max open files"))
        assert int(soft.split()[3]) > 200


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SANDGATE_MAX_COMMANDS", "0"),
        ("SANDGATE_MAX_REQUESTS", "x"),
        ("SANDGATE_KEEP_FINISHED_SECONDS", "-1"),
        ("SANDGATE_OUTPUT_BUFFER_BYTES", "1k"),
    ],
)
def test_a_limit_that_is_none_is_refused_at_the_start(
    tmp_path: Path, name: str, value: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(AssertionError), start_runtime(tmp_path, env={name: value}):
        pass
    assert name in capfd.readouterr().err


def test_while_a_command_opens_ten_thousand_files_health_answers(tmp_path: Path) -> None:
    (tmp_path / "open.py").write_text(
        "import resource, time\n"
        "hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))\n"
        "files = [open('/dev/null') for _ in range(min(10_000, hard - 10))]\n"
        "print(len(files), flush=True)\n"
        "time.sleep(1000)\n"
    )
    with start_runtime(tmp_path) as server:
        body = {"argv": ["python3", "open.py"]}
        with server.client.stream("POST", "/v1/processes", json=body, headers=ACCEPT) as answer:
            events = read_events(answer)
            next(events)
            assert int(next(events).data) > 900
            with httpx.Client(base_url=server.url) as other:
                assert other.get("/v1/health").json()["running"] == 1
                assert other.post("/execute", json={"command": "true"}).json()["exit_code"] == 0


def test_a_hundred_processes_run_at_the_same_time(tmp_path: Path) -> None:
    """They meet: each waits until all are there."""
    script = "touch here-$N; until [ $(ls | grep -c ^here-) = 100 ]; do sleep 0.1; done; echo $N"
    with start_runtime(tmp_path) as server:

        def ask(number: int) -> bytes:
            with httpx.Client(base_url=server.url, timeout=60) as client:
                body = {"shell": script, "env": {"N": str(number)}}
                with client.stream("POST", "/v1/processes", json=body, headers=ACCEPT) as answer:
                    return output(list(read_events(answer)))

        with ThreadPoolExecutor(100) as pool:
            told = list(pool.map(ask, range(100)))
        assert told == [b"%d\n" % number for number in range(100)]


SHORT_RUNS = 10_000 if os.environ.get("SANDGATE_SOAK") else 300


@pytest.mark.timeout(1800)
def test_many_short_runs_leave_no_process_no_descriptor_and_no_memory(tmp_path: Path) -> None:
    """SANDGATE_SOAK=1 does ten thousand of them."""
    with start_runtime(tmp_path) as server:
        bodies: list[dict[str, object]] = [
            {"argv": ["/bin/true"]},
            {"shell": "(true &) &"},
            {"argv": ["cat"], "stdin": "x"},
            {"argv": ["true"], "pty": {"cols": 80, "rows": 24}},
            {"argv": ["nosuch"]},
        ]
        for body in bodies * 20:
            run(server, **body)
        settled, memory = server.descriptors(), server.resident_bytes()
        for number in range(SHORT_RUNS):
            run(server, **bodies[number % len(bodies)])
        pid = server.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children")
        wait_until(lambda: not children.read_text().strip())
        wait_until(lambda: server.descriptors() == settled)
        assert server.resident_bytes() - memory < 16 << 20
        assert server.running() == 0
        assert threading.active_count() < 10
