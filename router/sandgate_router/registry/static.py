"""Sandboxes that someone else started, listed in a YAML file.

For compose files, tests and benchmarks: it routes, and it claims nothing. The file is read
again when it changes; one that cannot be used is reported and the last good one stays.
"""

import asyncio
import ipaddress
import logging
from collections.abc import Callable
from pathlib import Path

import msgspec
import yaml

from sandgate_router.errors import NotImplementedHere
from sandgate_router.names import DEFAULT_NAMESPACE, DEFAULT_PORT, Label, Port, parse_label
from sandgate_router.registry.base import Claim, ClaimRequest, Endpoint, PoolStatus
from sandgate_router.target import Target

log = logging.getLogger("sandgate.registry")

RELOAD_SECONDS = 1.0
"""How often the file's time is looked at."""

MAX_PORTS = 64
"""Endpoints remembered for one sandbox whose ports are not listed."""


class BadSandboxFile(Exception):
    """The file of static sandboxes cannot be used; the message says where."""


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One sandbox of the file."""

    id: str
    namespace: str = DEFAULT_NAMESPACE
    uid: str | None = None
    host: str | None = None
    """An IP address; any port of it, or `ports` alone."""
    ports: frozenset[int] | None = None
    unix: str | None = None
    """Path of a unix socket, in place of `host`; it serves port 8888."""


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    sandboxes: list[Entry] = []


_Name = tuple[Label, Label]


def load_sandboxes(path: Path) -> dict[_Name, Entry]:
    """Read the file; raise BadSandboxFile with the entry that is wrong."""
    try:
        content = yaml.safe_load(path.read_bytes())
        file = msgspec.convert(content or {}, _File)
    except (OSError, yaml.YAMLError, msgspec.ValidationError) as error:
        raise BadSandboxFile(f"{path}: {error}") from error
    entries: dict[_Name, Entry] = {}
    for entry in file.sandboxes:
        try:
            name = _check(entry)
        except ValueError as error:
            raise BadSandboxFile(f"{path}: sandbox {entry.id!r}: {error}") from error
        if name in entries:
            raise BadSandboxFile(f"{path}: sandbox {entry.id!r} is listed twice")
        entries[name] = entry
    return entries


def _check(entry: Entry) -> _Name:
    if (entry.host is None) == (entry.unix is None):
        raise ValueError("give either host or unix")
    if entry.host is not None:
        ipaddress.ip_address(entry.host)
    return parse_label(entry.namespace.encode()), parse_label(entry.id.encode())


class StaticRegistry:
    """Routes to the sandboxes of a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._modified = -1.0
        self._entries: dict[_Name, Entry] = {}
        self._endpoints: dict[_Name, dict[Port, Endpoint]] = {}
        self._gone: list[Callable[[Endpoint], None]] = []
        self._watcher: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<StaticRegistry {self._path.name} {len(self._entries)} sandboxes>"

    def endpoint(self, target: Target) -> Endpoint | None:
        """Return the endpoint of a listed sandbox and port."""
        name = (target.namespace, target.sandbox)
        known = self._endpoints.get(name)
        if known is None:
            return None
        endpoint = known.get(target.port)
        return endpoint or self._add_endpoint(name, target.port, known)

    async def find(self, target: Target) -> Endpoint | None:
        """Return None: what the file lists is all there is."""
        del target
        return None

    def subscribe(self, gone: Callable[[Endpoint], None]) -> None:
        """Have `gone` called for each endpoint that leaves the table."""
        self._gone.append(gone)

    async def start(self) -> None:
        """Read the file and begin to watch it; raise BadSandboxFile."""
        self._modified = self._path.stat().st_mtime if self._path.exists() else -1.0
        self._apply(load_sandboxes(self._path))
        self._watcher = asyncio.get_running_loop().create_task(self._watch())

    async def close(self) -> None:
        """Stop watching."""
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)

    async def claim(self, request: ClaimRequest) -> Claim:
        """Refuse: these sandboxes belong to whoever started them."""
        del request
        raise NotImplementedHere("The static registry has no pools; it only routes.")

    async def release(self, namespace: Label, name: Label) -> None:
        """Do nothing: there are no claims."""

    def claims(self) -> list[Claim]:
        """Return no claims."""
        return []

    def pools(self) -> list[PoolStatus]:
        """Return no pools."""
        return []

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(RELOAD_SECONDS)
            try:
                modified = self._path.stat().st_mtime
                if modified != self._modified:
                    self._modified = modified
                    self._apply(load_sandboxes(self._path))
            except (OSError, BadSandboxFile) as error:
                # The reason says it all; a traceback would only hide it.
                log.error("static.kept", extra={"reason": str(error)})  # noqa: TRY400

    def _apply(self, entries: dict[_Name, Entry]) -> None:
        for name, old in list(self._entries.items()):
            if entries.get(name) != old:
                for endpoint in self._endpoints.pop(name).values():
                    for gone in self._gone:
                        gone(endpoint)
        for name in entries:
            self._endpoints.setdefault(name, {})
        self._entries = entries

    def _add_endpoint(
        self, name: _Name, port: Port, known: dict[Port, Endpoint]
    ) -> Endpoint | None:
        entry = self._entries[name]
        allowed = {DEFAULT_PORT} if entry.unix is not None else entry.ports
        if allowed is not None and port not in allowed:
            return None
        if len(known) >= MAX_PORTS:
            # A caller that walks the ports must not fill our memory.
            oldest = next(iter(known))
            endpoint = known.pop(oldest)
            for gone in self._gone:
                gone(endpoint)
        known[port] = Endpoint(
            uid=entry.uid,
            name=f"{name[0]}/{name[1]}",
            host=entry.host or "",
            port=port if entry.host else 0,
            path=entry.unix or "",
        )
        return known[port]
