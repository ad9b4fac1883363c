"""Context managers that work on a disk, entered and left in worker threads."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager
from typing import TypeVar

from sandgate._async_transport import finish

T = TypeVar("T")


@asynccontextmanager
async def in_threads(manager: AbstractContextManager[T]) -> AsyncIterator[T]:
    """Enter and leave a context manager without holding up the event loop."""
    value = await asyncio.to_thread(manager.__enter__)
    try:
        yield value
    except BaseException as error:
        leave = asyncio.to_thread(manager.__exit__, type(error), error, error.__traceback__)
        if not await finish(leave):
            raise
    else:
        await finish(asyncio.to_thread(manager.__exit__, None, None, None))
