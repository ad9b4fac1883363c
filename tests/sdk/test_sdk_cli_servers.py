"""`sandgate up`, `router` and `runtime` hand over to packages that may not be installed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SERVER = """
import json

def main(command, flags):
    print(json.dumps([command, dict(flags)]))
    return 3
"""

RUNTIME = """
import json

def main(argv):
    print(json.dumps(list(argv)))
    return 4
"""


def _missing(name: str) -> str:
    return f"raise ModuleNotFoundError('No module named {name}', name={name!r})\n"


@pytest.fixture
def stand_ins(tmp_path: Path) -> Path:
    """Return a folder whose packages come before the installed ones."""
    for package, module, text in (
        ("sandgate_router", "server", SERVER),
        ("sandgate_runtime", "__main__", RUNTIME),
    ):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
        (tmp_path / package / f"{module}.py").write_text(text)
    return tmp_path


def _run(stand_ins: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sandgate.cli", *arguments],
        env={**os.environ, "PYTHONPATH": str(stand_ins)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize("command", ["up", "router"])
def test_flags_become_settings_and_the_exit_code_is_the_gateways(
    stand_ins: Path, command: str
) -> None:
    done = _run(
        stand_ins,
        command,
        *("--listen", "127.0.0.1:0", "--metrics-listen", "", "--registry", "static:x.yaml"),
        *("--pools", "p.yaml", "--isolation", "none", "--auth", "shared"),
    )
    assert done.returncode == 3
    assert json.loads(done.stdout) == [
        command,
        {
            "SANDGATE_LISTEN": "127.0.0.1:0",
            "SANDGATE_METRICS_LISTEN": "",
            "SANDGATE_REGISTRY": "static:x.yaml",
            "SANDGATE_POOLS": "p.yaml",
            "SANDGATE_ISOLATION": "none",
            "SANDGATE_AUTH": "shared",
        },
    ]


def test_flags_that_were_not_given_are_left_to_the_environment(stand_ins: Path) -> None:
    assert json.loads(_run(stand_ins, "up").stdout) == ["up", {}]


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--help"],
        ["-h"],
        ["--host", "0.0.0.0", "--port", "8888", "--root=/x", "word", "-v"],
        ["--fd", "3", "--relay-fd", "4"],
    ],
)
def test_the_runtime_gets_its_arguments_unchanged(stand_ins: Path, arguments: list[str]) -> None:
    done = _run(stand_ins, "runtime", *arguments)
    assert done.returncode == 4
    assert json.loads(done.stdout) == arguments


@pytest.mark.parametrize(
    ("command", "package", "module"),
    [("up", "sandgate_router", "server"), ("runtime", "sandgate_runtime", "__main__")],
)
def test_a_missing_extra_is_named(stand_ins: Path, command: str, package: str, module: str) -> None:
    (stand_ins / package / f"{module}.py").write_text(_missing("uvicorn"))
    done = _run(stand_ins, command)
    assert done.returncode == 1
    assert done.stderr == "sandgate: this needs uvicorn; run: pip install 'sandgate[gateway]'\n"


def test_a_module_that_no_extra_brings_is_a_fault_and_shown_as_one(stand_ins: Path) -> None:
    (stand_ins / "sandgate_router" / "server.py").write_text(_missing("sandgate_router.lost"))
    assert "No module named sandgate_router.lost" in _run(stand_ins, "up").stderr
    (stand_ins / "sandgate_router" / "server.py").write_text(_missing("something_else"))
    done = _run(stand_ins, "up")
    assert "ModuleNotFoundError" in done.stderr


@pytest.mark.parametrize("name", ["click", "rich"])
def test_the_command_line_without_its_extra_says_which(tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.py").write_text(_missing(name))
    done = _run(tmp_path, "version")
    assert done.returncode == 1
    assert done.stderr == (
        f"sandgate: the command line needs {name}; run: pip install 'sandgate[cli]'\n"
    )


def test_help_needs_neither_gateway_nor_runtime(stand_ins: Path) -> None:
    for package in ("sandgate_router", "sandgate_runtime"):
        (stand_ins / package / "__init__.py").write_text(_missing(package))
    done = _run(stand_ins, "--help")
    assert done.returncode == 0
    for command in (
        "up",
        "router",
        "runtime",
        "claim",
        "run",
        "ls",
        "cp",
        "release",
        "pools",
        "token",
    ):
        assert f"  {command} " in done.stdout


@pytest.mark.parametrize("command", ["up", "router"])
def test_help_promises_only_what_is_there(stand_ins: Path, command: str) -> None:
    shown = " ".join(_run(stand_ins, command, "--help").stdout.split())
    assert "local, static:FILE or dns." in shown
    assert "capability, shared or none." in shown
    assert "kubernetes" not in shown
