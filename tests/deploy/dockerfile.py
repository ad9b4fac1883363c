"""The Dockerfile as its tests follow it: stages, what each runs, and what the image then starts."""

import json
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

from deploy.manifests import ROOT


@dataclass
class Stage:
    """One FROM and what follows it."""

    base: str
    run: list[str] = field(default_factory=list)
    copied: list[str] = field(default_factory=list)
    """Sources of COPY from the context, not from another stage."""
    environment: dict[str, str] = field(default_factory=dict)
    user: str = ""
    workdir: str = ""
    ports: list[int] = field(default_factory=list)
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    healthcheck: list[str] = field(default_factory=list)


def read_stages(path: Path = ROOT / "Dockerfile") -> dict[str, Stage]:
    """Return the stages by name; raise KeyError at an instruction that is not known here."""
    text = re.sub(r"^#.*\n", "", path.read_text("utf-8"), flags=re.MULTILINE)
    stages: dict[str, Stage] = {}
    stage = Stage("")
    for line in text.replace("\\\n", " ").splitlines():
        word, _, rest = line.strip().partition(" ")
        rest = rest.strip()
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            stage = stages[name] = Stage(base)
        elif word not in {"", "ARG"}:
            _TAKE[word](stage, rest)
    return stages


def _copy(stage: Stage, rest: str) -> None:
    words = shlex.split(rest)
    if not words[0].startswith("--from="):
        stage.copied.extend(words[:-1])


def _set_environment(stage: Stage, rest: str) -> None:
    for pair in shlex.split(rest):
        name, _, text = pair.partition("=")
        stage.environment[name] = text


_TAKE: dict[str, Callable[[Stage, str], object]] = {
    "RUN": lambda stage, rest: stage.run.append(rest),
    "COPY": _copy,
    "ENV": _set_environment,
    "USER": lambda stage, rest: setattr(stage, "user", rest),
    "WORKDIR": lambda stage, rest: setattr(stage, "workdir", rest),
    "EXPOSE": lambda stage, rest: stage.ports.extend(map(int, rest.split())),
    "ENTRYPOINT": lambda stage, rest: stage.entrypoint.extend(json.loads(rest)),
    "CMD": lambda stage, rest: stage.command.extend(json.loads(rest)),
    "HEALTHCHECK": lambda stage, rest: stage.healthcheck.extend(
        json.loads(rest.partition(" CMD ")[2])
    ),
    "STOPSIGNAL": lambda stage, rest: None,  # noqa: ARG005 - an engine's default
}


def is_sent(path: str, ignored: Sequence[str]) -> bool:
    """Tell whether an engine would send a path of the context, as .dockerignore says."""
    sent = True
    for pattern in ignored:
        keep = pattern.startswith("!")
        bare = pattern.removeprefix("!")
        parts = path.split("/")
        heads = ["/".join(parts[: n + 1]) for n in range(len(parts))]
        if bare.startswith("**/"):
            matches = any(fnmatch(part, bare.removeprefix("**/")) for part in parts)
        else:
            matches = any(fnmatch(head, bare) for head in heads)
        sent = keep if matches else sent
    return sent


def read_ignored() -> list[str]:
    """Return the patterns of .dockerignore, in order."""
    lines = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]
