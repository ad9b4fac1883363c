"""Watches: a stream of changes from a version on, with bookmarks, an end, and what goes wrong."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from support.fake_kube.errors import ApiError, expired
from support.fake_kube.faults import Faults
from support.fake_kube.kinds import Kind
from support.fake_kube.selectors import Matches
from support.fake_kube.store import Change, Store

INITIAL_EVENTS_END = {"k8s.io/initial-events-end": "true"}


class WatchCut(Exception):
    """A connection that breaks in the middle of a watch."""


class Watch:
    """One watch of one client."""

    def __init__(
        self,
        store: Store,
        faults: Faults,
        kind: Kind,
        *,
        version: str,
        namespace: str,
        matches: Matches,
        from_version: str,
        initial: bool,
        bookmarks: bool,
        seconds: float,
    ) -> None:
        self._store = store
        self._faults = faults
        self._kind = kind
        self._api_version = kind.api_version(version)
        self._namespace = namespace
        self._matches = matches
        self._from = from_version
        self._initial = initial
        self._bookmarks = bookmarks
        self._seconds = seconds
        self._news: asyncio.Queue[Change | None] = asyncio.Queue()
        self.cut: type[Exception] | None = None
        """How the stream ends once `end` was called; None is in order."""

    def end(self, cut: type[Exception] | None = None) -> None:
        """End the stream."""
        self.cut = cut
        self._news.put_nowait(None)

    async def lines(self) -> AsyncIterator[bytes]:
        """Yield an event a line."""
        stop = self._store.on_change(self._note)
        try:
            sent = self._store.version
            for line in self._first():
                yield line
                if line.startswith(b'{"type":"ERROR"'):
                    return
            loop = asyncio.get_running_loop()
            until = loop.time() + self._seconds
            while (left := until - loop.time()) > 0:
                try:
                    async with asyncio.timeout(min(left, self._faults.bookmark_seconds)):
                        changes = [await self._news.get()]
                except TimeoutError:
                    if loop.time() < until and self._bookmarks and not self._faults.hold_events:
                        yield self._bookmark(sent)
                    continue
                while not self._news.empty():
                    changes.append(self._news.get_nowait())
                ended = None in changes
                for change in self._disturb([c for c in changes if c is not None]):
                    sent = max(sent, change.version)
                    for line in self._event(change):
                        yield line
                if ended:
                    if self.cut is not None:
                        raise self.cut
                    return
            if self._bookmarks:
                yield self._bookmark(sent)
        finally:
            stop()

    def _note(self, kind: Kind, change: Change) -> None:
        if kind is self._kind:
            self._news.put_nowait(change)

    def _first(self) -> list[bytes]:
        """Return what is told at once: what happened since, or all there is."""
        if self._from not in {"", "0"} and not self._initial:
            if not self._from.isdecimal():
                return [_line("ERROR", ApiError(400, "BadRequest", "bad version").status)]
            try:
                missed = self._store.since(self._kind, int(self._from))
            except ApiError:
                return [_line("ERROR", expired(int(self._from), self._store.version).status)]
            return [line for change in missed for line in self._event(change)]
        items = self._store.items(self._kind, self._namespace)
        lines = [self._line("ADDED", item) for item in items if self._matches(item)]
        if self._initial:
            lines.append(self._bookmark(self._store.version, INITIAL_EVENTS_END))
        return lines

    def _event(self, change: Change) -> list[bytes]:
        item, before = change.item, change.before
        if self._namespace not in {"", item["metadata"].get("namespace", "")}:
            return []
        did = before is not None and self._matches(before)
        does = change.type != "DELETED" and self._matches(item)
        if does:
            return [self._line("MODIFIED" if did else "ADDED", item)]
        return [self._line("DELETED", item)] if did else []

    def _disturb(self, changes: list[Change]) -> list[Change]:
        if self._faults.hold_events:
            return []
        if self._faults.reorder_events:
            changes.reverse()
        if self._faults.duplicate_events:
            changes = [change for change in changes for _ in range(2)]
        return changes

    def _line(self, kind: str, item: dict[str, Any]) -> bytes:
        return _line(kind, item | {"apiVersion": self._api_version})

    def _bookmark(self, version: int, annotations: dict[str, str] | None = None) -> bytes:
        metadata: dict[str, Any] = {"resourceVersion": str(version), "creationTimestamp": None}
        if annotations:
            metadata["annotations"] = annotations
        item = {
            "kind": self._kind.kind,
            "apiVersion": self._api_version,
            "metadata": metadata,
        }
        return _line("BOOKMARK", item)


def _line(kind: str, item: dict[str, Any]) -> bytes:
    return json.dumps({"type": kind, "object": item}, separators=(",", ":")).encode() + b"\n"
