"""A client as an ASGI app sees it, which leaves when the test says so."""

import asyncio

from starlette.types import Message


class Client:
    """A client's side of an ASGI channel whose body has been read."""

    def __init__(self) -> None:
        self.left = asyncio.Event()
        self._asked = False

    async def receive(self) -> Message:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self.left.wait()
        return {"type": "http.disconnect"}
