"""What a pool is made of, and the YAML file that lists pools and quotas.

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

from sandgate_router.config import BadConfig
from sandgate_router.names import DEFAULT_NAMESPACE, Label, parse_label
from sandgate_router.registry.base import Isolation
from sandgate_router.yaml_file import read_yaml, shown

LocalIsolation = Literal["bubblewrap", "none"]
Network = Literal["none", "host"]

EVERY_OTHER = "*"
"""Stands in `quotas` for each namespace that is not named there."""

GIB = 1024**3
MIN_BYTES = 1024**2
"""Smallest limit in bytes: below a MiB it is a slip of the unit, and nothing would start."""

LONGEST_SECONDS = 366 * 86400.0
"""Longest time that may be set, a year: what is longer is a slip of the unit."""

Recipe = tuple[object, ...]
"""All that a member is made from: members of one recipe are alike."""

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
    idle_seconds: float | None = 600.0
    """How long a claim lives without traffic and without a running command; None for ever."""
    max_age_seconds: float = 86400.0
    """How long a claim lives at most."""
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
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
    network: Network = "none"
    """Whether an isolated sandbox has the machine's network; an un-isolated one always does."""

    def recipe(self, isolation: Isolation) -> Recipe:
        """Return what makes its members what they are, under this isolation."""
        return (
            isolation,
            tuple(sorted(self.env.items())),
            self.memory_bytes,
            self.cpu_seconds,
            self.max_processes,
            self.workspace_bytes,
            self.network,
        )


@dataclass(frozen=True, slots=True)
class PoolsFile:
    """What the file says."""

    pools: tuple[PoolSpec, ...]
    quotas: Mapping[str, int] = field(default_factory=dict)
    """Live claims that a namespace may hold; `*` is every other one. Unnamed: no limit."""

    def quota(self, namespace: Label) -> int | None:
        """Return how many claims a namespace may hold; None for any number."""
        return self.quotas.get(namespace, self.quotas.get(EVERY_OTHER))


DEFAULT_POOLS = (PoolSpec(name=Label("python")),)
"""What stands ready when no file is given."""

_MEMBERS = frozenset(row.name for row in fields(PoolSpec))


def load_pools(path: Path) -> PoolsFile:
    """Read the YAML file that lists pools under `pools`, and quotas under `quotas`.

    Raises:
        BadConfig: with every fault of the file.
    """
    content = read_yaml(path, kind="pools")
    try:
        return parse_pools(content)
    except BadConfig as error:
        raise BadConfig([f"pools file {path}: {fault}" for fault in error.faults]) from error


def parse_pools(content: object) -> PoolsFile:
    """Return what a file's content says; raise BadConfig with every fault."""
    if not isinstance(content, dict) or not isinstance(content.get("pools"), list):
        raise BadConfig(["it holds no list named `pools`"])
    faults = [
        f"{shown(key)} is no member of the file; it holds `pools` and `quotas`"
        for key in content.keys() - {"pools", "quotas"}
    ]
    quotas = content.get("quotas")
    faults.extend(_quota_faults(quotas))
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
    return PoolsFile(tuple(specs), dict(quotas or {}))


def _quota_faults(quotas: object) -> list[str]:
    if quotas is None:
        return []
    if not isinstance(quotas, dict):
        return ['`quotas` is no mapping of namespaces to numbers, like {"*": 100}']
    faults = []
    for namespace, number in quotas.items():
        if not isinstance(number, int) or isinstance(number, bool) or number < 0:
            faults.append(f"quota of {namespace!r}: {number!r} is not a whole number of claims")
        if namespace == EVERY_OTHER:
            continue
        if not isinstance(namespace, str):  # in YAML `7` and `on` are no texts
            faults.append(f"quota of {namespace!r}: write the namespace in quotes")
            continue
        try:
            parse_label(namespace.encode())
        except ValueError as error:
            faults.append(f"quota of {namespace!r}: the namespace {error}")
    return faults


def _parse_pool(entry: object) -> tuple[PoolSpec | None, list[str]]:
    if not isinstance(entry, dict):
        return None, ["is no mapping"]
    faults = [
        f"{shown(key)} is no member of a pool; the members are {', '.join(sorted(_MEMBERS))}"
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
        elif seconds is not None and seconds > LONGEST_SECONDS:
            faults.append(f"{member} {seconds:.0f} is more than a year ({LONGEST_SECONDS:.0f})")
    for member, least in _LEAST.items():
        if (value := getattr(spec, member)) < least:
            faults.append(f"{member} {value} is not at least {least}")
    faults.extend(_env_faults(spec.env))
    return faults


def _env_faults(env: Mapping[str, str]) -> list[str]:
    faults = []
    for number, (name, value) in enumerate(env.items(), start=1):
        if _ENV_NAME.fullmatch(name) is None:  # and no word of it: it may hold the value as well
            faults.append(f"env: name {number} is no variable's (A-Z a-z 0-9 _, no digit first)")
        elif _OUR_ENV.fullmatch(name):
            faults.append(f"env {name} is set by the gateway")
        elif "\0" in value:
            faults.append(f"env {name} holds a NUL character")
    return faults
