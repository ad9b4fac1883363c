"""The optional wheel: `SANDGATE_COMPILE=1 pip wheel .` has the hot modules compiled by mypyc.

What is compiled are the modules that run interpreted otherwise, as they stand; nothing in them
asks which of the two they are. Without the variable a wheel is pure Python, and building it needs
neither mypy nor a C compiler. The sources are in both wheels, so a traceback shows its lines.

hatch-mypyc is not used: it knows one source folder and writes into it, where an editable install
would run what is left behind; and it moves `pyproject.toml` away while it builds.
"""

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SWITCH = "SANDGATE_COMPILE"

HOT = (
    *("access_log", "authorize", "body", "capability", "capability_text", "client", "connect"),
    *("denied", "fields", "forward", "frames", "gateway", "head", "inbox", "limits", "metrics"),
    *("names", "pod_ip", "relay", "resolve", "response", "retry", "target", "tunnel", "upgrade"),
    "upstream",
)
"""What runs for each request. Not `field_lines`: its dict is asked by C, which would call a
compiled `__missing__` through a wrapper."""

GROUP = "sandgate_router"
"""Names the one library that has all of them, in which they call each other without Python."""


class CompiledWheel(BuildHookInterface[Any]):
    """Puts the compiled modules beside their sources."""

    _folder: TemporaryDirectory[str] | None = None

    def dependencies(self) -> list[str]:
        """Return what compiling needs: mypy also reads what the modules import."""
        if not _is_wanted():
            return []
        return ["mypy[mypyc]>=2.4", *self.metadata.core.optional_dependencies["gateway"]]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and have the wheel say for which Python and machine it is."""
        if not _is_wanted():
            return
        if version == "editable":
            raise ValueError(f"{SWITCH} is for wheels; an editable install runs the sources")
        self._folder = TemporaryDirectory()
        for path, name in _compile(Path(self.root), Path(self._folder.name)).items():
            build_data["force_include"][str(path)] = name
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was compiled, now that it is packed."""
        del version, build_data, artifact_path
        if self._folder is not None:
            self._folder.cleanup()


def _is_wanted() -> bool:
    value = os.environ.get(SWITCH, "")
    if value not in ("", "0", "1"):
        raise ValueError(f"{SWITCH} is {value!r}; 1 compiles the hot modules, 0 does not")
    return value == "1"


def _compile(root: Path, folder: Path) -> dict[Path, str]:
    """Return the libraries that were made in `folder`, with their names in the wheel."""
    from mypyc.build import mypycify  # only here: a pure wheel is built without them
    from setuptools import Distribution
    from setuptools.command.build_ext import build_ext

    options = (
        *("--config-file", str(root / "pyproject.toml")),
        *("--cache-dir", str(folder / "cache")),
        "--follow-imports=silent",
    )
    modules = [str(root / "router" / "sandgate_router" / f"{name}.py") for name in HOT]
    extensions = mypycify(
        [*options, *modules],
        opt_level="3",
        debug_level="0",
        target_dir=str(folder / "c"),
        group_name=GROUP,
    )
    command = build_ext(Distribution({"ext_modules": extensions}))
    command.build_lib, command.build_temp = str(folder / "lib"), str(folder / "objects")
    command.ensure_finalized()
    command.run()
    made = Path(command.build_lib)
    return {path: str(path.relative_to(made)) for path in made.rglob("*") if path.is_file()}
