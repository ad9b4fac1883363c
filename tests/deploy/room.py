"""A room with the machine's programs, read-only, and what an image adds: no engine needed.

bubblewrap assembles it anew for each command. The steps of the Dockerfile run in it as they
stand, with /src and /opt of their own; what the image starts runs with everything read-only, as
the image's user, in a network of its own, so that it listens where it always does.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deploy.dockerfile import Stage, is_sent, read_ignored, read_stages
from deploy.manifests import ROOT

StandIn = Callable[["Room"], None]

BASE = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
PATH = "/usr/local/bin:/usr/bin:/bin"
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc")
TARGETS = ("router", "runtime")
BUILD_SECONDS = 600
RUN_SECONDS = 60


@dataclass
class Room:
    """Folders that stand for those of an image."""

    folder: Path
    opt: Path = field(init=False)
    source: Path = field(init=False)

    def __post_init__(self) -> None:
        """Make the folders, which every user may look into."""
        self.folder.mkdir(mode=0o755)
        self.opt = self._make("opt")
        self.source = self._make("src")

    def _make(self, name: str) -> Path:
        path = self.folder / name
        path.mkdir(mode=0o755)
        return path

    def build(self, *stages: Stage, stand_ins: Mapping[str, StandIn]) -> None:
        """Copy and run what the stages say; a line of `stand_ins` is done by it instead."""
        for stage in stages:
            self._copy(stage.copied)
            for line in stage.run:
                stand_in = stand_ins.get(line)
                if stand_in is not None:
                    stand_in(self)
                else:
                    self.run_as_builder(line)

    def run_as_builder(self, line: str) -> str:
        """Run one line in a shell, as RUN does; return what it prints."""
        line = re.sub(r"^python ", f"{BASE} ", line)
        binds = ["--bind", str(self.opt), "/opt", "--bind", str(self.source), "/src"]
        # The environment that tests run in stands in for one that is built here.
        for path in {str(ROOT), sys.prefix, sys.base_prefix, os.path.expanduser("~")}:
            if not path.startswith("/usr"):
                binds += ["--ro-bind-try", path, path]
        environ = {name: text for name, text in os.environ.items() if name.startswith("PIP_")}
        environ |= {"PATH": PATH, "HOME": os.path.expanduser("~"), "PIP_NO_CACHE_DIR": "1"}
        command = [
            *_bwrap(environ),
            "--tmpfs",
            "/tmp",
            *binds,
            "--chdir",
            "/src",
            "sh",
            "-ec",
            line,
        ]
        return _run(command, seconds=BUILD_SECONDS)

    def start(
        self,
        stage: Stage,
        *,
        environ: Mapping[str, str],
        writable: Mapping[str, Path] | None = None,
        requests: Sequence[Mapping[str, object]] = (),
        paths: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Start what the image starts, ask it, end it; return what `inside` saw.

        `writable` are volumes; everything else is read-only. The user is the image's where
        these tests may be anybody, and else bubblewrap's idea of it.
        """
        user, _, group = stage.user.partition(":")
        shutil.copy(Path(__file__).with_name("inside.py"), self.opt / "inside.py")
        whole = {"PATH": PATH, "HOME": "/", **stage.environment, **environ}
        plan = {
            "argv": [*stage.entrypoint, *stage.command],
            "environ": whole,
            "health": stage.healthcheck,
            "requests": requests,
            "paths": paths,
        }
        command = [*_bwrap(whole), "--unshare-net", "--unshare-pid", "--unshare-ipc"]
        command += ["--ro-bind", str(self.opt), "/opt"]
        for inside, outside in (writable or {}).items():
            command += [*_parents(Path(inside)), "--bind", str(outside), inside]
        command += ["--remount-ro", "/", "--chdir", stage.workdir]
        if os.getuid() == 0:
            command += ["setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups"]
            command += ["--no-new-privs"]
        else:
            command += ["--unshare-user", "--uid", user, "--gid", group]
        command += ["/opt/sandgate/bin/python", "-I", "/opt/inside.py", json.dumps(plan)]
        seen: dict[str, Any] = json.loads(_run(command, seconds=RUN_SECONDS))
        return seen

    def _copy(self, sources: Sequence[str]) -> None:
        """Bring in what an engine would have been sent of these."""
        ignored = read_ignored()
        for source in sources:
            for path in sorted([ROOT / source, *(ROOT / source).rglob("*")]):
                relative = path.relative_to(ROOT)
                if path.is_file() and is_sent(str(relative), ignored):
                    target = self.source / relative
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(path, target)


def build_images(folder: Path, *, stand_ins: Mapping[str, StandIn]) -> dict[str, Room]:
    """Return a room for each target, in which all has run that its image is made from."""
    stages = read_stages()
    common = Room(folder / "build")
    common.build(stages["build"], stand_ins=stand_ins)
    rooms = {}
    for target in TARGETS:
        rooms[target] = Room(folder / target)
        shutil.copytree(common.folder, rooms[target].folder, symlinks=True, dirs_exist_ok=True)
        rooms[target].build(stages[f"{target}-build"], stand_ins=stand_ins)
    return rooms


def _bwrap(environ: Mapping[str, str]) -> list[str]:
    command = ["bwrap", "--die-with-parent", "--proc", "/proc", "--dev", "/dev", "--clearenv"]
    for path in SYSTEM:
        command += ["--ro-bind-try", path, path]
    prefix = Path(sys.base_prefix)
    if not prefix.is_relative_to("/usr"):
        # Python may lie in a home that the image's user could not enter.
        command += [*_parents(prefix), "--ro-bind", str(prefix), str(prefix)]
    for name, text in environ.items():
        command += ["--setenv", name, text]
    return command


def _parents(path: Path) -> list[str]:
    """Return what makes the folders above a path for everyone; bubblewrap's own are private."""
    made = []
    for parent in reversed(path.parents[:-1]):
        made += ["--perms", "0755", "--dir", str(parent)]
    return made


def _run(command: Sequence[str], *, seconds: float) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds)
    assert done.returncode == 0, f"{command[-1]}\n{done.stdout}\n{done.stderr}"
    return done.stdout
