"""What starts the sandboxes of each isolation, opened when a pool first needs it."""

import asyncio
import logging
from collections.abc import Iterable

from sandgate_router.registry.local.folder import RunFolder, sweep_dead
from sandgate_router.registry.local.isolated import IsolatedStarter
from sandgate_router.registry.local.member import Starter
from sandgate_router.registry.local.plain import PlainStarter
from sandgate_router.registry.local.pools import LocalIsolation
from sandgate_router.registry.local.stock import Starters

log = logging.getLogger(__name__)


class OpenStarters:
    """The starters that are open, and the folder in which they work."""

    def __init__(self, given: Starters | None = None, *, descriptors: int | None = None) -> None:
        """Make starters as they are needed, or use those `given`."""
        self.open_ones: dict[LocalIsolation, Starter] = {}
        self.folder: RunFolder | None = None
        self._given = given
        self._descriptors = descriptors

    async def open(self, kinds: Iterable[LocalIsolation]) -> None:
        """Have a starter open for each of these isolations.

        Raises:
            IsolationUnavailable: with what to install or to change.
        """
        for kind in sorted(set(kinds) - self.open_ones.keys()):
            starter = await self._make(kind) if self._given is None else self._given[kind]
            try:
                await starter.open()
            except BaseException:
                starter.close()
                raise
            self.open_ones[kind] = starter

    async def close(self) -> None:
        """Let go of all, after every sandbox has ended, and remove what was made on disk."""
        for starter in self.open_ones.values():
            starter.close()
        self.open_ones.clear()
        if self.folder is not None:
            await asyncio.to_thread(self.folder.close)
            self.folder = None

    async def _make(self, kind: LocalIsolation) -> Starter:
        if self.folder is None:
            for path in await asyncio.to_thread(sweep_dead):
                log.info("registry.swept", extra={"folder": str(path)})
            self.folder = RunFolder.create()
        make = IsolatedStarter if kind == "bubblewrap" else PlainStarter
        return make(self.folder, descriptors=self._descriptors)
