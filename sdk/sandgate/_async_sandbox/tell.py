"""Watchers of output, which may be coroutine functions here."""

import inspect

from sandgate._wire.output import Watcher


async def tell(watcher: Watcher | None, text: str) -> None:
    """Give a watcher a piece of text; one that is a coroutine function is awaited."""
    if watcher is not None and text:
        answer = watcher(text)
        if inspect.isawaitable(answer):
            await answer
