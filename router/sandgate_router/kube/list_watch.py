"""List, then watch: how a copy of the cluster's objects is kept.

A list gives a version; a watch tells what happened since. A watch that breaks is resumed from
the last version that was seen, bookmarks included; one whose version has expired (410) means
that something may have been missed, so everything is listed anew. One that is silent for too
long is taken for broken: the server sends a bookmark about once a minute.

Whoever keeps the copy is told of lists as a whole and of events one by one, in the order in
which they came, possibly twice.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Protocol

import msgspec

from sandgate_router.kube.backoff import Backoff
from sandgate_router.kube.client import KubeClient, WatchEvent, raise_event_error
from sandgate_router.kube.errors import Denied, Gone, KubeError, NotFound, Refused
from sandgate_router.kube.resources import Resource

PAGE = 500
"""Objects of one answer to a list; client-go asks for as many."""

WATCH_SECONDS = 300.0
"""How long a watch is asked for; client-go's last 5 to 10 minutes."""

SILENCE_SECONDS = 90.0
"""Longest silence of a watch: it may be half open, and nobody would ever tell."""

SHORT_SECONDS = 1.0
"""A watch that ends sooner in order is resumed with a pause: some proxies end all of them."""

log = logging.getLogger("sandgate.kube")


class Sink(Protocol):
    """What keeps the copy."""

    def replace(self, items: list[bytes], *, version: str, namespace: str) -> None:
        """Take the whole list of a namespace, or of all where it is empty."""

    def apply(self, kind: str, item: msgspec.Raw) -> None:
        """Take one event: ADDED, MODIFIED or DELETED."""


class _Metadata(msgspec.Struct, rename="camel"):
    resource_version: str = ""


class _Versioned(msgspec.Struct):
    metadata: _Metadata


_VERSIONED = msgspec.json.Decoder(_Versioned)


class ListWatch:
    """Keeps one kind of objects in one namespace, or in all."""

    def __init__(
        self,
        client: KubeClient,
        resource: Resource,
        namespace: str,
        sink: Sink,
        *,
        backoff: Callable[[], Backoff] = Backoff,
    ) -> None:
        """Ask for nothing yet; an empty namespace is every one."""
        self._client = client
        self._resource = resource
        self._namespace = namespace
        self._sink = sink
        self._backoff = backoff()
        self._version = ""
        self.synced = asyncio.Event()
        """Set once everything was listed for the first time."""
        self.fault: str | None = None
        """Why nothing new is learned, in words for an operator; None while it is."""

    def __repr__(self) -> str:
        state = self.fault or ("synced" if self.synced.is_set() else "starting")
        return f"<ListWatch {self._resource.plural} {self._namespace or '*'} {state}>"

    async def run(self) -> None:
        """Keep the copy for ever."""
        while True:
            wait: float | None = None
            try:
                if not self._version:
                    await self._list()
                await self._watch()
            except Gone:
                self._version = ""
                wait = self._backoff.next()
            except KubeError as error:
                self._note(error)
                wait = self._backoff.next(getattr(error, "retry_after", None))
                await self._discover(error)
            except Exception:
                log.exception("kube.failed", extra={"resource": self._resource.plural})
                self._version = ""
                wait = self._backoff.next()
            if wait is not None:
                await asyncio.sleep(wait)

    async def _list(self) -> None:
        items: list[bytes] = []
        after = ""
        while True:
            page = await self._client.list(self._resource, self._namespace, limit=PAGE, after=after)
            items += page.items
            if not (after := page.next):
                break
        self._sink.replace(items, version=page.version, namespace=self._namespace)
        self._version = page.version
        self._works()
        self.synced.set()

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        # Not all replicas at once, and not all watches of one.
        seconds = WATCH_SECONDS * random.uniform(0.8, 1.0)  # noqa: S311
        async with self._client.watch(
            self._resource,
            self._namespace,
            version=self._version,
            seconds=seconds,
            silence=SILENCE_SECONDS,
        ) as events:
            self.fault = None
            async for event in events:
                self._take(event)
                self._backoff.reset()
        if loop.time() - begun < SHORT_SECONDS:
            await asyncio.sleep(self._backoff.next())

    def _take(self, event: WatchEvent) -> None:
        if event.type == "ERROR":
            raise_event_error(event, f"watch {self._resource.qualified}")
        if event.type != "BOOKMARK":
            self._sink.apply(event.type, event.object)
        # Only now: an event that could not be taken has to come again.
        self._version = _VERSIONED.decode(event.object).metadata.resource_version

    def _works(self) -> None:
        self._backoff.reset()
        if self.fault is not None:
            self.fault = None
            log.info("kube.recovered", extra=self._where())

    def _note(self, error: KubeError) -> None:
        fault = _fault(error)
        if fault != self.fault:  # one line for a fault, however long it lasts
            log.warning("kube.unavailable", extra={**self._where(), "reason": str(error)})
        self.fault = fault

    async def _discover(self, error: KubeError) -> None:
        """Look for another version of the kind where there is no such one."""
        if isinstance(error, NotFound):
            try:
                if await self._client.discover(self._resource):
                    self._version = ""
            except KubeError as failure:
                self._note(failure)

    def _where(self) -> dict[str, str]:
        return {"resource": self._resource.qualified, "namespace": self._namespace or "*"}


def _fault(error: KubeError) -> str:
    if isinstance(error, Denied):
        return f"the Kubernetes API forbids: {error.what}"
    if isinstance(error, Refused):
        return f"the Kubernetes API refuses ({error.code}): {error.what}"
    return "the Kubernetes API does not answer"
