"""The README's sessions, run as they stand against a real gateway.

A `console` block is a shell session: what follows `$ ` is run, the lines under it are what it
prints, and `...` there stands for anything. All of them together are one shell. A `python`
block is a program of its own; the comments `# prints: ` say, in order, what it prints.
"""

import contextlib
import os
import re
import selectors
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import pytest

from sandgate_router.callers import load_callers
from sandgate_router.config import Config
from sandgate_router.names import Label
from sandgate_router.registry.local import PoolSpec, load_pools
from sandgate_router.registry.static import load_sandboxes

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SHOWN_ADDRESS = "127.0.0.1:8080"
ISOLATION = "bubblewrap" if shutil.which("bwrap") else "none"
NOT_ISOLATED = (
    "sandgate: isolation none: nothing keeps the code in this sandbox from the gateway's machine\n"
)
START_SECONDS = 60
COMMAND_SECONDS = 60

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PRINTS = re.compile(r"# prints: (.*)$", re.MULTILINE)
_END = "--end-of-command--"


@dataclass(frozen=True)
class Step:
    """One command of a session, which a backslash continues in the next line, and its output."""

    command: str
    output: str


def blocks(language: str) -> list[str]:
    return [text for found, text in _BLOCK.findall(README) if found == language]


def parse_session(text: str) -> list[Step]:
    parts = re.split(r"^\$ ", text, flags=re.MULTILINE)
    assert parts[0] == "", f"a session begins with a command: {text!r}"
    steps = []
    for part in parts[1:]:
        lines = part.splitlines(keepends=True)
        length = 1 + next(n for n, line in enumerate(lines) if not line.endswith("\\\n"))
        steps.append(Step("".join(lines[:length]).rstrip("\n"), "".join(lines[length:])))
    return steps


def matches(shown: str, printed: str) -> bool:
    """Compare line by line; `...` is anything within a line, and runs of spaces are one."""
    patterns = [".*".join(re.escape(part) for part in line.split("...")) for line in _lines(shown)]
    found = _lines(printed)
    return len(patterns) == len(found) and all(map(re.fullmatch, patterns, found))


def _lines(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.strip().splitlines()]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The address of a gateway; without bubblewrap it is one without isolation."""
    arguments = ["up", "--listen", "127.0.0.1:0", "--isolation", ISOLATION]
    process = subprocess.Popen(
        [sys.executable, "-m", "sandgate.cli", *arguments],
        env=_environ(),
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            assert selector.select(START_SECONDS), "the gateway did not start in time"
        line = process.stdout.readline().rstrip("\n")
        assert line.startswith("listening on http://"), line
        yield line.removeprefix("listening on http://")
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30)
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _environ(**more: str) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    home = os.environ.get("HOME", "/")
    # Settings of the gateway in the tester's own shell must not change what is shown.
    return {"PATH": path, "HOME": home, "LANG": "C.UTF-8", "SANDGATE_DRAIN_DELAY": "0", **more}


def run_session(steps: list[Step], *, address: str, folder: Path) -> list[str]:
    """Run all commands in one shell; return what each printed."""
    script = "".join(
        f"{step.command.replace(SHOWN_ADDRESS, address)}\necho '{_END}'\n" for step in steps
    )
    environ = _environ(SANDGATE_URL=f"http://{address}")
    del environ["SANDGATE_DRAIN_DELAY"]
    done = subprocess.run(
        ["/bin/sh", "-s"],
        input=script,
        env=environ,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=COMMAND_SECONDS,
        check=False,
    )
    return done.stdout.split(f"{_END}\n")[:-1]


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_sessions_print_what_the_readme_shows(address: str, tmp_path: Path) -> None:
    steps = [step for block in blocks("console") for step in parse_session(block)]
    assert len(steps) > 10
    printed = run_session(steps, address=address, folder=tmp_path)
    assert len(printed) == len(steps), printed
    for step, output in zip(steps, printed, strict=True):
        shown = step.output.replace('"isolation": "bubblewrap"', f'"isolation": "{ISOLATION}"')
        told = output.replace(NOT_ISOLATED, "")  # there only where nothing isolates
        assert matches(shown, told), f"$ {step.command}\n{output}\nshown:\n{shown}"


@pytest.mark.parametrize("number", range(len(blocks("python"))))
def test_the_programs_print_what_their_comments_say(
    number: int, address: str, tmp_path: Path
) -> None:
    text = blocks("python")[number]
    expected = _PRINTS.findall(text)
    assert expected
    done = subprocess.run(
        [sys.executable, "-c", text.replace(SHOWN_ADDRESS, address)],
        env=_environ(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # A watcher is given text with its own line ends, and `print` adds one.
    assert [line for line in done.stdout.splitlines() if line] == expected


def test_a_session_that_differs_is_noticed() -> None:
    assert matches('{"pid": ...}\n', '{"pid": 8}\n')
    assert matches("SIZE ... NAME\n", "SIZE  MODIFIED  NAME\n")
    assert not matches("one\n", "two\n")
    assert not matches("one\n", "one\ntwo\n")
    assert not matches("a.c\n", "abc\n")


@pytest.mark.parametrize("target", ["demo", "up", "test", "check", "lock"])
def test_each_make_target_that_the_documents_name_exists(target: str) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(rf"^{target}:", makefile, re.MULTILINE)


@pytest.mark.parametrize(
    ("target", "command"), [("demo", "python -m sandgate.demo"), ("up", "sandgate up")]
)
def test_the_two_commands_of_the_readme_call_what_it_says(target: str, command: str) -> None:
    assert f"make {target}" in "".join(blocks("sh"))
    recipe = re.search(
        rf"^{target}:.*\n\t(.*)\n", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE
    )
    assert recipe is not None
    assert recipe[1].endswith(f"$(BIN)/{command}")


def test_every_document_that_the_readme_links_to_exists() -> None:
    links = [link for link in re.findall(r"\]\(([^)]+)\)", README) if "://" not in link]
    assert links
    assert [link for link in links if not (ROOT / link.partition("#")[0]).exists()] == []


def test_the_files_that_the_configuration_shows_can_be_used(tmp_path: Path) -> None:
    shown = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    pools, callers, sandboxes = (
        text for language, text in _BLOCK.findall(shown) if language == "yaml"
    )
    (tmp_path / "pools.yaml").write_text(pools)
    (tmp_path / "callers.yaml").write_text(callers)
    (tmp_path / "sandboxes.yaml").write_text(sandboxes)
    assert load_callers(tmp_path / "callers.yaml")
    # "The values here are the defaults."
    assert load_pools(tmp_path / "pools.yaml").pools == (
        PoolSpec(name=Label("python"), isolation="bubblewrap"),
    )
    assert [name for _, name in load_sandboxes(tmp_path / "sandboxes.yaml")] == [
        "sb-1",
        "sb-2",
        "sb-3",
    ]


def test_every_setting_that_the_readme_names_is_one() -> None:
    settings = {row.metadata["name"]: row.metadata["flag"] for row in fields(Config)}
    rows = re.findall(r"^\| `([A-Z_]+)` \| (?:`(--[a-z-]+)`)? ?\|", README, re.MULTILINE)
    assert len(rows) > 5
    assert [row for row in rows if settings.get(row[0]) != row[1]] == []
