"""In place of the Dockerfile's steps that fetch packages: the environment that tests run in."""

import re
import shutil
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from deploy.room import Room, StandIn


def _make_build_tools(room: Room) -> None:
    """Put a Python into /opt/build that is the one of these tests, and knows the new wheel."""
    python = room.opt / "build" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(
        "#!/bin/sh\n"
        'case "$1" in *locked_subset.py) export PYTHONPATH=/opt/fresh;; esac\n'
        f'exec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)


def _unpack_wheel(room: Room) -> None:
    """Put the wheel beside the environment of these tests, which has to stay as it is."""
    room.run_as_builder(
        "/opt/build/bin/python -m pip install --quiet --no-deps --no-index"
        " --disable-pip-version-check --target /opt/fresh /opt/wheels/*.whl"
    )


def _copy_locked(room: Room) -> None:
    """Bring in what the subset of the lock names, and nothing else, from this environment."""
    names = re.findall(r"^([\w.-]+)==", (room.opt / "image.lock").read_text(), re.MULTILINE)
    assert names
    (packages,) = (room.opt / "sandgate" / "lib").glob("python3*/site-packages")
    for name in names:
        for file in metadata.files(name) or []:
            source = Path(str(file.locate()))
            if ".." not in file.parts and source.exists():
                target = packages / file
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target)  # and its time, by which bytecode is known


STAND_INS: Mapping[str, StandIn] = {
    "python -m venv /opt/build": _make_build_tools,
    "/opt/build/bin/python -m pip install --quiet --require-hashes -r requirements.lock": (
        lambda room: None  # noqa: ARG005 - it is all there
    ),
    "/opt/build/bin/python -m pip install --quiet --no-deps --no-index /opt/wheels/*.whl": (
        _unpack_wheel
    ),
    "/opt/build/bin/python -m pip --python /opt/sandgate/bin/python install --quiet --no-deps"
    " --require-hashes -r /opt/image.lock": _copy_locked,
}
