"""`python -m sandgate.demo`, as `make demo` runs it."""

import re
import subprocess
import sys
from pathlib import Path

from support.system_gateway import (
    build_environment,
    build_path_without_bubblewrap,
    need,
    nothing_left_running,
    scratch_folder,
)

STEPS = [
    "started the gateway",
    "claimed a sandbox",
    "wrote run.py",
    "ran it, its output live",
    "read result.json back",
    "listed the folder",
    "released the sandbox",
    "asked the released sandbox again: 404, it is gone",
    "stopped the gateway and what it had started",
]


def run_demo(tmp_path: Path, **environ: str) -> str:
    """Run the demo with all that it could write to in sight; return what it printed."""
    home, here = tmp_path / "home", tmp_path / "here"
    home.mkdir()
    here.mkdir()
    with scratch_folder() as temporary, nothing_left_running():
        done = subprocess.run(
            [sys.executable, "-m", "sandgate.demo"],
            env=build_environment(HOME=str(home), TMPDIR=str(temporary), **environ),
            cwd=here,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=90,
        )
        assert (done.returncode, done.stderr) == (0, ""), done
        assert not list(temporary.iterdir())
    assert not [*home.iterdir(), *here.iterdir()]
    return done.stdout


def timed_steps(printed: str) -> list[str]:
    return re.findall(r"^ *\d+ ms  (.+)$", printed, re.MULTILINE)


def test_the_demo_shows_each_step_with_its_time_and_leaves_nothing(tmp_path: Path) -> None:
    need("bubblewrap")
    printed = run_demo(tmp_path)
    assert timed_steps(printed) == STEPS
    assert "isolation bubblewrap" in printed
    assert [f"line {number} of 4" in printed for number in range(1, 5)] == [True] * 4
    assert "'sum': 5050" in printed
    assert printed.endswith("done\n")


def test_without_bubblewrap_the_demo_says_so_and_goes_on(tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    printed = run_demo(tmp_path, PATH=build_path_without_bubblewrap(programs))
    first, *_ = printed.splitlines()
    assert "bubblewrap is not installed" in first
    assert first.endswith("sudo apt-get install bubblewrap")
    assert timed_steps(printed) == STEPS
    assert "isolation none" in printed


def test_settings_of_the_caller_do_not_change_the_demo(tmp_path: Path) -> None:
    printed = run_demo(tmp_path, SANDGATE_LISTEN="nonsense", SANDGATE_URL="http://127.0.0.1:1")
    assert timed_steps(printed) == STEPS
