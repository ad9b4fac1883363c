"""Which wheel comes of which build. What the compiled one does is tried by `make test-compiled`."""

import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[2]


def build(
    folder: Path, *, kind: str = "standard", **settings: str
) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if name != "SANDGATE_COMPILE"}
    return subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", f"wheel:{kind}", "-d", str(folder)],
        cwd=ROOT,
        env={**environ, **settings},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("settings", [{}, {"SANDGATE_COMPILE": "0"}, {"SANDGATE_COMPILE": ""}])
def test_a_wheel_is_pure_python_unless_it_is_asked_to_be_compiled(
    tmp_path: Path, settings: dict[str, str]
) -> None:
    built = build(tmp_path, **settings)

    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.iterdir()
    assert wheel.name.endswith("-py3-none-any.whl")
    names = ZipFile(wheel).namelist()
    assert "sandgate_router/client.py" in names
    assert "sandgate_router/openapi.yaml" in names
    assert not [
        name
        for name in names
        if not name.endswith((".py", ".yaml", ".typed")) and ".dist-info/" not in name
    ]


def test_a_word_that_is_neither_yes_nor_no_is_refused(tmp_path: Path) -> None:
    built = build(tmp_path, SANDGATE_COMPILE="yes")

    assert built.returncode != 0
    assert "SANDGATE_COMPILE is 'yes'; 1 compiles the hot modules, 0 does not" in built.stderr


def test_an_editable_install_is_not_compiled(tmp_path: Path) -> None:
    built = build(tmp_path, kind="editable", SANDGATE_COMPILE="1")

    assert built.returncode != 0
    assert "SANDGATE_COMPILE is for wheels; an editable install runs the sources" in built.stderr
