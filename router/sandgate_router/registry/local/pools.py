"""What a pool is made of, and the YAML file that lists pools.

Pure but for reading the one file. Every fault of the file is listed, each in a sentence that
names the pool and the member, before anything is started.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import msgspec
import yaml

from sandgate_router.config import BadConfig
from sandgate_router.names import DEFAULT_NAMESPACE, Label, parse_label

LocalIsolation = Literal["bubblewrap", "none"]

GIB = 1024**3
MIN_BYTES = 1024**2
"""Smallest limit in bytes: below a MiB it is a slip of the unit, and nothing would start."""

_LEAST = {
    "max": 1,
    "cpu_seconds": 1,
    "max_processes": 1,
    "memory_bytes": MIN_BYTES,
    "workspace_bytes": MIN_BYTES,
}

_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OUR_ENV = re.compile(r"SANDGATE_.*|SANDBOX_BASE_DIR|HOME")
"""Variables that tell the runtime who and where it is; a pool may not tell it otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSpec:
    """The settings of one pool."""

    name: Label
    namespace: Label = DEFAULT_NAMESPACE
    warm: int = 4
    """Members that stand ready."""
    max: int = 32
    """Members at most: ready, claimed, being started and being ended."""
    lease_seconds: float = 3600.0
    """How long a claim lives that does not say it."""
    idle_seconds: float | None = None
    """How long a claim is to live without use; nothing acts on it in this version."""
    max_age_seconds: float = 86400.0
    """How long a claim lives at most."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables that the code inside sees, beside PATH, HOME and LANG."""
    isolation: LocalIsolation | None = None
    """None takes the gateway's."""
    memory_bytes: int = GIB
    """What each process of a command can write to (RLIMIT_DATA): a limit per process, and none
    for the sandbox as a whole."""
    cpu_seconds: int = 3600
    """Processor time of each process of a command."""
    max_processes: int = 1024
    """Processes and threads of the sandbox at one time."""
    workspace_bytes: int = GIB
    """All files of an isolated sandbox together; each file of an un-isolated one."""
    network: Literal["none", "host"] = "none"


DEFAULT_POOLS = (PoolSpec(name=Label("python")),)
"""What stands ready when no file is given."""

_MEMBERS = frozenset(row.name for row in fields(PoolSpec))


def load_pools(path: Path) -> list[PoolSpec]:
    """Read the pools that a YAML file lists under `pools`.

    Raises:
        BadConfig: with every fault of the file.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise BadConfig([f"pools file {path} cannot be read: {error}"]) from error
    try:
        return parse_pools(content)
    except BadConfig as error:
        raise BadConfig([f"pools file {path}: {fault}" for fault in error.faults]) from error


def parse_pools(content: object) -> list[PoolSpec]:
    """Return the pools of a file's content; raise BadConfig with every fault."""
    if not isinstance(content, dict) or not isinstance(content.get("pools"), list):
        raise BadConfig(["it holds no list named `pools`"])
    faults = [
        f"{key!r} is no member of the file; it holds `pools`" for key in content.keys() - {"pools"}
    ]
    specs: list[PoolSpec] = []
    for number, entry in enumerate(content["pools"], start=1):
        named = entry.get("name") if isinstance(entry, dict) else None
        where = f"pool {number}" + (f" ({named})" if isinstance(named, str) else "")
        spec, found = _parse_pool(entry)
        faults.extend(f"{where}: {fault}" for fault in found)
        if spec is None:
            continue
        if any((spec.namespace, spec.name) == (seen.namespace, seen.name) for seen in specs):
            faults.append(f"{where}: an earlier pool in {spec.namespace} has that name")
        specs.append(spec)
    if not content["pools"]:
        faults.append("`pools` is empty")
    if faults:
        raise BadConfig(faults)
    return specs


def _parse_pool(entry: object) -> tuple[PoolSpec | None, list[str]]:
    if not isinstance(entry, dict):
        return None, ["is no mapping"]
    faults = [
        f"{key!r} is no member of a pool; the members are {', '.join(sorted(_MEMBERS))}"
        for key in entry
        if key not in _MEMBERS
    ]
    known: dict[str, Any] = {key: value for key, value in entry.items() if key in _MEMBERS}
    try:
        spec = msgspec.convert(known, PoolSpec)
    except msgspec.ValidationError as error:
        return None, [*faults, str(error).replace("`$.", "`")]
    return spec, [*faults, *pool_faults(spec)]


def pool_faults(spec: PoolSpec) -> list[str]:
    """Return what is wrong with a pool whose members have the right types."""
    faults = []
    for member in ("name", "namespace"):
        try:
            parse_label(getattr(spec, member).encode())
        except ValueError as error:
            faults.append(f"{member} {error}")
    if not 0 <= spec.warm <= spec.max:
        faults.append(f"warm {spec.warm} is not between 0 and max ({spec.max})")
    for member in ("lease_seconds", "idle_seconds", "max_age_seconds"):
        seconds = getattr(spec, member)
        if seconds is not None and (not math.isfinite(seconds) or seconds <= 0):
            faults.append(f"{member} {seconds} is not a finite number of seconds above 0")
    for member, least in _LEAST.items():
        if (value := getattr(spec, member)) < least:
            faults.append(f"{member} {value} is not at least {least}")
    faults.extend(_env_faults(spec.env))
    if spec.network == "host":
        faults.append("network host is not available in this version; use none")
    return faults


def _env_faults(env: Mapping[str, str]) -> list[str]:
    faults = []
    for name, value in env.items():
        if _ENV_NAME.fullmatch(name) is None:
            faults.append(f"env {name!r} is not a variable's name")
        elif _OUR_ENV.fullmatch(name):
            faults.append(f"env {name} is set by the gateway")
        elif "\0" in value:
            faults.append(f"env {name} holds a NUL character")
    return faults
