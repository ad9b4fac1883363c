"""Who may use the control API: the callers of a YAML file, found by their tokens.

    callers:
      - name: ci
        sha256: 5d41…                 # lower-case hex of the token's SHA-256
        namespaces: [default, team]   # or ["*"]
        rights: [claim, read]         # or admin

The file holds no secret, only digests. A token is looked up by its digest, so the time that
takes says nothing about how near a guess came. Every fault of the file is listed, each in a
sentence that names the caller; a digest is never quoted, since what stands there by mistake
may be the token itself. A file that changes is read again; while it cannot be used, the
callers that were known stay.
"""

import asyncio
import contextlib
import hashlib
import logging
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from sandgate_router.config import BadConfig
from sandgate_router.names import parse_label
from sandgate_router.yaml_file import read_stamp, read_yaml, shown

log = logging.getLogger("sandgate.callers")

Right = Literal["claim", "read", "admin"]

RELOAD_SECONDS = 1.0
"""How often the file's time is looked at; so long a removed caller may still call."""

ANY_NAMESPACE = "*"

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
"""A Kubernetes label's value, so that claims can carry it as one."""

_DIGEST = re.compile(r"[0-9a-f]{64}")
_EMPTY = hashlib.sha256(b"").hexdigest()
"""What `sha256sum` says of a variable that was not set."""


@dataclass(frozen=True, slots=True)
class Caller:
    """One entry of the file."""

    name: str
    namespaces: frozenset[str] | None
    """None is every namespace."""
    rights: frozenset[Right]


Callers = Mapping[str, Caller]
"""Callers by the digest of their tokens, in lower-case hex."""


class CallerFile:
    """The callers of a file, as it stands or stood when it could be used last."""

    def __init__(self, path: Path) -> None:
        """Read the file; raise BadConfig with every fault."""
        self._path = path
        self._version = read_stamp(path)
        self._callers = load_callers(path)
        self.failures = 0
        """How often it changed to something that cannot be used."""

    def __repr__(self) -> str:
        return f"<CallerFile {self._path.name} {len(self._callers)} tokens>"

    def find(self, token: bytes) -> Caller | None:
        """Return whose token this is; None if nobody's."""
        return self._callers.get(hashlib.sha256(token).hexdigest())

    @contextlib.asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """Read the file whenever it has changed, while the context lasts."""
        task = asyncio.get_running_loop().create_task(self._follow())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(RELOAD_SECONDS)
            try:
                await self._look()
            except Exception:
                # Whatever it was: with the next file, too, a caller must be taken off in time.
                self.failures += 1
                log.exception("callers.kept")

    async def _look(self) -> None:
        version = await asyncio.to_thread(read_stamp, self._path)
        if version != self._version:
            self._version = version
            await self._reload()

    async def _reload(self) -> None:
        try:
            self._callers = await asyncio.to_thread(load_callers, self._path)
        except BadConfig as error:
            self.failures += 1
            # The reason says it all; a traceback would only hide it.
            log.error("callers.kept", extra={"reason": str(error)})  # noqa: TRY400
        else:
            log.info("callers.read", extra={"tokens": len(self._callers)})


def load_callers(path: Path) -> Callers:
    """Read the callers of a file; raise BadConfig with every fault."""
    content = read_yaml(path, kind="callers")
    try:
        return parse_callers(content)
    except BadConfig as error:
        raise BadConfig([f"callers file {path}: {fault}" for fault in error.faults]) from error


def parse_callers(content: object) -> Callers:
    """Return the callers of a file's content; raise BadConfig with every fault."""
    if not isinstance(content, dict) or not isinstance(content.get("callers"), list):
        raise BadConfig(["it holds no list named `callers`"])
    faults = [
        f"{shown(key)} is no member of the file; it holds `callers`"
        for key in content.keys() - {"callers"}
    ]
    by_digest: dict[str, Caller] = {}
    by_name: dict[str, Caller] = {}
    for number, value in enumerate(content["callers"], start=1):
        named = value.get("name") if isinstance(value, dict) else None
        where = f"caller {number}" + (f" ({named})" if isinstance(named, str) else "")
        entry, found = _parse_entry(value)
        faults.extend(f"{where}: {fault}" for fault in found)
        if entry is None:
            continue
        caller = _build_caller(entry)
        if by_name.setdefault(entry.name, caller) != caller:
            # Two tokens of one caller let it change them; two kinds of rights would be a slip.
            faults.append(f"{where}: an earlier caller of that name has other namespaces or rights")
        if by_digest.setdefault(entry.sha256, caller) is not caller:
            faults.append(f"{where}: an earlier caller has the same sha256")
    if faults:
        raise BadConfig(faults)
    return by_digest


class _Entry(msgspec.Struct, frozen=True):
    name: str
    sha256: str
    namespaces: list[str]
    rights: list[Right]


def _parse_entry(value: object) -> tuple[_Entry | None, list[str]]:
    if not isinstance(value, dict):
        return None, ["is no mapping"]
    members = _Entry.__struct_fields__
    faults = [
        f"{shown(key)} is no member of a caller; the members are {', '.join(members)}"
        for key in value
        if key not in members
    ]
    missing = [f"`{member}` is missing" for member in members if member not in value]
    if missing:
        return None, faults + missing
    try:
        entry = msgspec.convert({member: value[member] for member in members}, _Entry)
    except msgspec.ValidationError as error:
        return None, [*faults, str(error).replace("`$.", "`")]
    return entry, [*faults, *_entry_faults(entry)]


def _entry_faults(entry: _Entry) -> list[str]:
    faults = []
    if _NAME.fullmatch(entry.name) is None:
        faults.append(
            f"`name` {entry.name!r:.80} is not 1 to 63 of A-Z a-z 0-9 - _ ., beginning and ending"
            " with a letter or digit"
        )
    if _DIGEST.fullmatch(entry.sha256) is None:
        faults.append("`sha256` is not 64 lower-case hexadecimal digits")
    elif entry.sha256 == _EMPTY:
        faults.append("`sha256` is that of an empty token")
    if not entry.rights:
        faults.append("`rights` is empty; give some of claim, read, admin")
    if not entry.namespaces:
        faults.append('`namespaces` is empty; give some, or ["*"] for all')
    if ANY_NAMESPACE in entry.namespaces and len(entry.namespaces) > 1:
        faults.append('`namespaces` names "*" and others; give either')
    faults += [
        f"`namespaces`: {name!r:.80} is not a label (a-z, 0-9 and inner hyphens, at most 63)"
        for name in entry.namespaces
        if name != ANY_NAMESPACE and not _is_label(name)
    ]
    return faults


def _build_caller(entry: _Entry) -> Caller:
    anywhere = ANY_NAMESPACE in entry.namespaces
    return Caller(
        name=entry.name,
        namespaces=None if anywhere else frozenset(entry.namespaces),
        rights=frozenset(entry.rights),
    )


def _is_label(text: str) -> bool:
    try:
        parse_label(text.encode())
    except ValueError:
        return False
    return True
