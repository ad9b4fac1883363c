"""The pools file, read again when it changes.

A file that cannot be used is logged and changes nothing. One that is being written is left
alone until it has looked the same twice: half a list of pools is a list of pools, too.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

from sandgate_router.config import BadConfig
from sandgate_router.registry.local.pools import PoolsFile, load_pools
from sandgate_router.registry.local.unavailable import IsolationUnavailable

LOOK_SECONDS = 0.5
"""How often the file is looked at; a change counts after two looks."""

Stamp = tuple[int, int, int]
"""What changes with the file: its number, its size, its time of modification."""

log = logging.getLogger(__name__)


class WatchedPools:
    """A pools file and what was last seen of it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._applied = read_stamp(path)
        self._seen = self._applied

    def load(self) -> PoolsFile:
        """Read the file; raise BadConfig."""
        # Stamped before it is read: what changes meanwhile is seen at the next look.
        self._applied = self._seen = read_stamp(self._path)
        return load_pools(self._path)

    async def run(self, apply: Callable[[PoolsFile], Awaitable[None]]) -> None:
        """Watch for ever, and have each good version applied."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self.look(apply)

    async def look(self, apply: Callable[[PoolsFile], Awaitable[None]]) -> None:
        """Look once."""
        stamp = await asyncio.to_thread(read_stamp, self._path)
        settled, self._seen = stamp == self._seen, stamp
        if stamp == self._applied or not settled:
            return
        try:
            await apply(await asyncio.to_thread(self.load))
        except (BadConfig, IsolationUnavailable) as error:
            # The reason says it all; a traceback would only hide it.
            log.error("pools.kept", extra={"reason": str(error)})  # noqa: TRY400
        except Exception:
            log.exception("pools.kept")
        else:
            log.info("pools.applied", extra={"path": str(self._path)})


def read_stamp(path: Path) -> Stamp | None:
    """Return what tells this version of the file from others; None where there is no file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns
