"""Which process an Idempotency-Key belongs to: a request that is repeated never runs twice.

A key is reserved before anything starts, on disk where there is a state directory. Requests with
one key stand in line, so the second sees what became of the first. A key outlives its process:
repeated then, or after the runtime was started again, the answer is that the outcome is unknown.
No key is forgotten before its process is: where all are needed, a new one is refused.
"""

import asyncio
import contextlib
import hashlib
import time
from collections.abc import AsyncIterator, Callable

from sandgate_runtime.errors import IdempotencyKeyReused, OutcomeUnknown, StateUnavailable
from sandgate_runtime.processes.journal import Journal, Reservation

KEEP_SECONDS = 24 * 3600.0
"""A client that was cut off for a night and repeats its request runs nothing twice."""

MAX_KEYS = 10_000
"""Keys that are remembered, the oldest forgotten first; each takes about 600 bytes."""

_MAX_LINES = 2 * MAX_KEYS


class Keys:
    """Remembers keys, what they came with, and the id of what was started."""

    def __init__(
        self,
        journal: Journal | None = None,
        *,
        clock: Callable[[], float] = time.time,
        is_kept: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self._journal = journal
        self._clock = clock
        self.is_kept = is_kept
        """Whether the process with an id runs, or is kept after its end."""
        self._reserved: dict[str, Reservation] = {}
        self._processes: dict[str, str] = {}
        self._turns: dict[str, _Line] = {}
        self._disk = asyncio.Lock()
        self._lines = 0

    def load(self) -> None:
        """Read what an earlier runtime has reserved; blocks, raises OSError."""
        if self._journal is not None:
            self._reserved = {entry.key: entry for entry in self._journal.read()}
            self._sweep()
            self._rewrite()

    def close(self) -> None:
        """Close the file."""
        if self._journal is not None:
            self._journal.close()

    @contextlib.asynccontextmanager
    async def turn(self, key: str) -> AsyncIterator[str]:
        """Wait until no other request with this key is starting anything; yield its digest."""
        digest = digest_bytes(key.encode())
        line = self._turns.setdefault(digest, _Line())
        line.length += 1
        try:
            async with line.lock:
                yield digest
        finally:
            line.length -= 1
            if not line.length:
                del self._turns[digest]

    def find(self, key: str, request: str) -> str | None:
        """Return the id of the process that this key started, None for a new key.

        Raise IdempotencyKeyReused for another request, OutcomeUnknown for an earlier runtime's.
        """
        self._sweep()
        known = self._reserved.get(key)
        if known is None:
            return None
        if known.request != request:
            raise IdempotencyKeyReused("this Idempotency-Key came with another request before")
        if key not in self._processes:
            raise OutcomeUnknown("this request came before; whether it ran is not known any more")
        return self._processes[key]

    async def reserve(self, key: str, request: str) -> None:
        """Take a key before its process is started; raise StateUnavailable."""
        self._sweep(MAX_KEYS - 1)
        if len(self._reserved) >= MAX_KEYS:
            raise StateUnavailable(
                f"all {MAX_KEYS} keys that are remembered belong to processes that are kept; "
                "remove some, or ask without a key"
            )
        reservation = Reservation(key, request, self._clock())
        self._reserved[key] = reservation
        try:
            await self._on_disk(lambda journal: journal.reserve(reservation))
        except OSError as error:
            del self._reserved[key]
            raise StateUnavailable(f"the key cannot be written down: {error.strerror}") from error

    def started(self, key: str, process: str) -> None:
        """Say what was started with a key."""
        self._processes[key] = process

    async def give_back(self, key: str) -> None:
        """Say that nothing was started, so that the same request may try again."""
        self._reserved.pop(key, None)
        # Where it cannot be written, a later runtime holds the outcome for unknown: a safe error.
        with contextlib.suppress(OSError):
            await self._on_disk(lambda journal: journal.give_back(key))

    async def _on_disk(self, change: Callable[[Journal], None]) -> None:
        journal = self._journal
        if journal is None:
            return
        async with self._disk:
            if self._lines >= _MAX_LINES:
                await asyncio.to_thread(self._rewrite)
            self._lines += 1
            await asyncio.to_thread(change, journal)

    def _rewrite(self) -> None:
        assert self._journal is not None
        entries = list(self._reserved.values())
        self._journal.rewrite(entries)
        self._lines = len(entries)

    def _sweep(self, maximum: int = MAX_KEYS) -> None:
        """Forget what is too old, and what is most so above a number, unless it is needed."""
        oldest = self._clock() - KEEP_SECONDS
        excess = len(self._reserved) - maximum
        dropped: list[str] = []
        for entry in self._reserved.values():
            if len(dropped) >= excess and entry.at >= oldest:
                break
            if not self._is_needed(entry.key):
                dropped.append(entry.key)
        for key in dropped:
            del self._reserved[key]
            self._processes.pop(key, None)

    def _is_needed(self, key: str) -> bool:
        process = self._processes.get(key)
        return key in self._turns or (process is not None and self.is_kept(process))


class _Line:
    """Requests with one key; it exists while any of them is in it."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.length = 0


def digest_bytes(content: bytes) -> str:
    """Return the SHA-256 of a key or a request, in hexadecimal."""
    return hashlib.sha256(content).hexdigest()
