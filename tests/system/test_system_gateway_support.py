"""What proves that nothing is left would tell if something were."""

import subprocess
import sys

import pytest
from support.system_gateway import find_command, nothing_left_running, unique_seconds

DAEMON = """
import os, sys
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execvp("sleep", ["sleep", sys.argv[1]])
    os._exit(0)
os.wait()
"""


def test_a_daemon_that_left_its_parents_is_found_and_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("support.system_gateway.GONE_SECONDS", 0.2)
    seconds = unique_seconds()
    with pytest.raises(AssertionError, match=f"sleep {seconds}"), nothing_left_running():
        subprocess.run([sys.executable, "-c", DAEMON, seconds], check=True)
    with nothing_left_running():
        pass


def test_processes_that_were_there_before_are_left_alone() -> None:
    seconds = unique_seconds()
    with subprocess.Popen(["sleep", seconds]) as before:
        with nothing_left_running():
            subprocess.run(["true"], check=True)
        assert find_command([before.pid], "sleep", seconds)
        before.kill()
