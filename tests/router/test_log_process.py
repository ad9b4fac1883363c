"""The log of a gateway as a process: nobody has to read it, and what goes wrong is counted."""

import hashlib
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families
from support.system_gateway import SANDGATE, build_environment, sandgate_up

LINES = 1000
"""Audit lines that are far more than a pipe holds (64 KiB on Linux)."""


def write_callers(path: Path, token: str) -> None:
    digest = hashlib.sha256(token.encode()).hexdigest()
    path.write_text(
        f"callers: [{{name: ci, sha256: '{digest}', namespaces: ['*'], rights: [admin]}}]"
    )


def counter(url: str, name: str) -> float:
    for family in text_string_to_metric_families(httpx.get(f"{url}/metrics").text):
        for sample in family.samples:
            if sample.name == name:
                return sample.value
    raise AssertionError(f"{name} is not among the metrics")


def wait_until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_log_that_nobody_reads_stops_no_gateway(tmp_path: Path) -> None:
    write_callers(tmp_path / "callers.yaml", "secret")
    with subprocess.Popen(
        [SANDGATE, "up", "--listen", "127.0.0.1:0", "--isolation", "none"],
        env=build_environment(TMPDIR=str(tmp_path), SANDGATE_CALLERS=f"{tmp_path}/callers.yaml"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().decode().removeprefix("listening on ").strip()
            with httpx.Client(base_url=url, timeout=10) as client:
                known = {"authorization": "Bearer secret"}
                for number in range(LINES):
                    assert client.get("/v1/pools").status_code == 401
                    path = f"/v1/claims/default/c{number}"
                    assert client.delete(path, headers=known).status_code == 204
                assert client.get("/livez").status_code == 200
            process.terminate()
            assert process.wait(60) == 0
        finally:
            process.kill()


def test_a_file_of_callers_that_turns_bad_is_counted_and_lets_callers_be_taken_off_later(
    tmp_path: Path,
) -> None:
    path = tmp_path / "callers.yaml"
    write_callers(path, "first")
    environ = {"SANDGATE_CALLERS": str(path)}
    with sandgate_up("--metrics-listen", "127.0.0.1:0", isolation="none", environ=environ) as up:
        metrics = up.read_line("metrics on ")
        failures = "sandgate_caller_reload_failures_total"
        assert counter(metrics, failures) == 0
        assert counter(metrics, "sandgate_log_lines_dropped_total") == 0
        path.write_text("callers: []\nuntil: 2026-11-31\n")
        wait_until(lambda: counter(metrics, failures) == 1)
        fields = {"authorization": "Bearer first"}
        assert httpx.get(f"{up.url}/v1/pools", headers=fields).status_code == 200
        wait_until(lambda: f"callers file {path}, line 2, column 8" in up.errors())
        path.write_text("callers: []")
        wait_until(lambda: httpx.get(f"{up.url}/v1/pools", headers=fields).status_code == 401)
