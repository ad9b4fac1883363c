"""Sandboxes that someone else started, listed in a YAML file.

For compose files, tests and benchmarks: it routes, and it claims nothing. The file is read
again when it changes; one that cannot be used is reported and the last good one stays. What a
change leaves as it was keeps its endpoints, and with them its connections. The operator wrote
the addresses, so any may be listed, loopback included.
"""

import asyncio
import contextlib
import ipaddress
import logging
import os
import re
from pathlib import Path

import msgspec
import yaml

from sandgate_router.names import (
    DEFAULT_NAMESPACE,
    DEFAULT_PORT,
    Label,
    Port,
    parse_label,
    parse_port,
)
from sandgate_router.registry.base import Endpoint
from sandgate_router.registry.routes_only import RoutesOnly
from sandgate_router.target import Target

log = logging.getLogger("sandgate.registry")

RELOAD_SECONDS = 1.0
"""How often the file is looked at."""

MAX_PORTS = 64
"""Endpoints remembered for one sandbox whose ports are not listed."""

MAX_UNIX_PATH = 107
"""Longest path of a unix socket, in bytes (unix(7): 108 with its NUL)."""

_UID = re.compile(r"[\x21-\x7e]{1,253}")
"""It is sent in a field, so it holds nothing that could end the line."""

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's where PyYAML has it: some 10 times faster with thousands of sandboxes."""


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

    def serves(self, port: Port) -> bool:
        """Tell whether `port` may be asked for."""
        if self.unix is not None:
            return port == DEFAULT_PORT
        return self.ports is None or port in self.ports

    def is_at_the_place_of(self, other: "Entry | None") -> bool:
        """Tell whether it is the same sandbox, dialled in the same way."""
        return other is not None and (self.uid, self.host, self.unix) == (
            other.uid,
            other.host,
            other.unix,
        )


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    sandboxes: list[Entry]


_Name = tuple[Label, Label]


def load_sandboxes(path: Path) -> dict[_Name, Entry]:
    """Read the file; raise BadSandboxFile with the entry that is wrong."""
    try:
        content = yaml.load(path.read_bytes(), Loader=_LOADER)  # noqa: S506 - both are safe ones
        if content is None:
            # Also what a file is for a moment while a program writes it anew.
            raise BadSandboxFile(f"{path}: it is empty; write `sandboxes: []` for none")
        file = msgspec.convert(content, _File)
    # ValueError: PyYAML's, for what looks like a date and is none.
    except (
        OSError,
        yaml.YAMLError,
        ValueError,
        TypeError,
        LookupError,
        AttributeError,  # the last three: PyYAML's own constructors, at a tag that fits nothing
        RecursionError,
    ) as error:
        raise BadSandboxFile(f"{path}: {error}") from error
    entries: dict[_Name, Entry] = {}
    for entry in file.sandboxes:
        try:
            name = _check(entry)
        except ValueError as error:
            raise BadSandboxFile(f"{path}: sandbox {entry.id!r}: {error}") from error
        if name in entries:
            raise BadSandboxFile(f"{path}: sandbox {'/'.join(name)!r} is listed twice")
        entries[name] = entry
    return entries


def _check(entry: Entry) -> _Name:
    if (entry.host is None) == (entry.unix is None):
        raise ValueError("give either host or unix")
    if entry.host is not None:
        ipaddress.ip_address(entry.host)
    if entry.unix is not None:
        _check_unix(entry)
    if entry.ports is not None:
        if not entry.ports:
            raise ValueError("ports is empty; leave it out for any port")
        for port in entry.ports:
            parse_port(str(port).encode())
    if entry.uid is not None and _UID.fullmatch(entry.uid) is None:
        raise ValueError(f"uid {entry.uid!r} is not printable ASCII without spaces, at most 253")
    return parse_label(entry.namespace.encode()), parse_label(entry.id.encode())


def _check_unix(entry: Entry) -> None:
    length = len(os.fsencode(entry.unix or ""))
    if not 0 < length <= MAX_UNIX_PATH:
        raise ValueError(f"unix has {length} bytes; a socket's path has 1 to {MAX_UNIX_PATH}")
    if entry.ports is not None:
        raise ValueError(f"ports goes with host; a unix socket serves port {DEFAULT_PORT}")


class StaticRegistry(RoutesOnly):
    """Routes to the sandboxes of a file."""

    kind = "static"

    def __init__(self, path: Path, *, reload_seconds: float = RELOAD_SECONDS) -> None:
        super().__init__()
        self._path = path
        self._reload_seconds = reload_seconds
        self._seen: object = None
        self._entries: dict[_Name, Entry] = {}
        self._endpoints: dict[_Name, dict[Port, Endpoint]] = {}
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

    async def start(self) -> None:
        """Read the file and begin to watch it; raise BadSandboxFile."""
        # Looked at before it is read: what is written in between is read at the first look.
        self._seen = _look_at(self._path)
        self._apply(load_sandboxes(self._path))
        self._watcher = asyncio.get_running_loop().create_task(self._follow())

    async def close(self) -> None:
        """Stop following the file."""
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(self._reload_seconds)
            seen = _look_at(self._path)
            if seen == self._seen:
                continue
            self._seen = seen
            try:
                # In a thread: thousands of sandboxes take longer than a request may wait.
                self._apply(await asyncio.to_thread(load_sandboxes, self._path))
            except BadSandboxFile as error:
                # The reason says it all; a traceback would only hide it.
                log.error("static.kept", extra={"reason": str(error)})  # noqa: TRY400
            else:
                log.info("static.read", extra={"sandboxes": len(self._entries)})

    def _apply(self, entries: dict[_Name, Entry]) -> None:
        left: list[Endpoint] = []
        for name, old in self._entries.items():
            known = self._endpoints[name]
            new = entries.get(name)
            stays = new if old.is_at_the_place_of(new) else None
            ended = [port for port in known if stays is None or not stays.serves(port)]
            left.extend(known.pop(port) for port in ended)
        self._endpoints = {name: self._endpoints.get(name, {}) for name in entries}
        self._entries = entries
        for endpoint in left:
            self._tell_gone(endpoint)

    def _add_endpoint(
        self, name: _Name, port: Port, known: dict[Port, Endpoint]
    ) -> Endpoint | None:
        entry = self._entries[name]
        if not entry.serves(port):
            return None
        if len(known) >= MAX_PORTS:
            # A caller that walks the ports must not fill our memory, nor end what uses 8888.
            oldest = next(known_port for known_port in known if known_port != DEFAULT_PORT)
            self._tell_gone(known.pop(oldest))
        known[port] = Endpoint(
            uid=entry.uid,
            name=f"{name[0]}/{name[1]}",
            host=entry.host or "",
            port=port if entry.host else 0,
            path=entry.unix or "",
        )
        return known[port]


def _look_at(path: Path) -> object:
    """Return what tells one state of a file from the next; None where there is no file."""
    with contextlib.suppress(OSError):
        state = path.stat()
        return state.st_ino, state.st_mtime_ns, state.st_size
    return None
