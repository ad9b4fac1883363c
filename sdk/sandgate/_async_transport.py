"""The same as `_transport`, for asyncio: sends what `_wire` builds, and knows nothing else."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

import httpx

from sandgate._origin import Origin, build_tls, open_origin
from sandgate._transport import LIMITS, build_outgoing, build_reply, map_error
from sandgate._wire.feed import Feed
from sandgate._wire.flow import Flow, Pause, Step
from sandgate._wire.message import ERROR_BODY_BYTES, Body, Call, Request
from sandgate.connections import Connection
from sandgate.errors import SandgateError

if TYPE_CHECKING:
    import ssl

T = TypeVar("T")
E = TypeVar("E")

BEGIN_SECONDS = 5.0
"""How long a cancelled task waits for the first event of a command that it has sent."""

_END = object()


class AsyncTransport:
    """The connections of one handle to its gateway, for one event loop."""

    def __init__(
        self, connection: Connection, *, http: httpx.AsyncBaseTransport | None = None
    ) -> None:
        """`http` stands in for the network."""
        tls = build_tls(connection)
        self.tls: ssl.SSLContext | None = None if isinstance(tls, bool) else tls
        self.origin: Origin = open_origin(connection)
        self.http: httpx.AsyncBaseTransport = http or httpx.AsyncHTTPTransport(
            trust_env=False, limits=LIMITS, verify=tls
        )

    async def perform(self, flow: Flow[T]) -> T:
        """Do what a flow asks for, to its end."""
        try:
            step = next(flow)
            while True:
                try:
                    answer = await self._take(step)
                except SandgateError as error:
                    step = flow.throw(error)
                else:
                    step = flow.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result

    async def follow(self, feed: Feed[E]) -> AsyncGenerator[E, None]:
        """Yield what a feed tells, over as many connections as it takes.

        Closing the iterator early, or cancelling who reads it, ends what the feed belongs to.
        """
        try:
            while not feed.finished:
                try:
                    async with AsyncExitStack() as stack:
                        begin = asyncio.ensure_future(self._begin(feed, stack))
                        told, chunks = await _not_halfway(begin)
                        for event in told:
                            yield event
                        async for chunk in chunks:
                            for event in feed.receive(chunk):
                                yield event
                    feed.end()
                except SandgateError as error:
                    await self.perform(feed.recover(error))
        except BaseException:
            with suppress(SandgateError):  # what ends the iterator matters more
                await finish(self.perform(feed.abandon()))
            raise

    async def _begin(
        self, feed: Feed[E], stack: AsyncExitStack
    ) -> tuple[list[E], AsyncIterator[bytes]]:
        """Open a stream, and read until the feed knows what it would have to end."""
        chunks = await stack.enter_async_context(self.stream(feed.open()))
        told: list[E] = []
        while not feed.begun and (chunk := await anext(chunks, None)) is not None:
            told += feed.receive(chunk)
        return told, chunks

    async def call(self, call: Call[T]) -> T:
        """Send a request and return what its whole answer means."""
        async with self._exchange(call.request) as response:
            with self._mapped(call.request):
                body = b"".join([chunk async for chunk in response.aiter_raw()])
        return call.decode(build_reply(response, body))

    @asynccontextmanager
    async def stream(self, call: Call[Any]) -> AsyncIterator[AsyncIterator[bytes]]:
        """Send a request and give its answer piece by piece; a refusal is raised by the call.

        Leaving the block early closes the connection.
        """
        async with self.open(call) as response:
            yield self.chunks(response, call.request)

    @asynccontextmanager
    async def open(self, call: Call[Any]) -> AsyncIterator[httpx.Response]:
        """Send a request and give its answer unread; a refusal is raised by the call."""
        async with self._exchange(call.request) as response:
            if not 200 <= response.status_code < 300:
                with self._mapped(call.request):
                    body = await _read_some(response)
                call.decode(build_reply(response, body))
            yield response

    async def close(self) -> None:
        """Close the connections; streams that are open end."""
        await self.http.aclose()
        await asyncio.to_thread(self.origin.close)

    async def _take(self, step: Step) -> Any:
        if isinstance(step, Pause):
            await asyncio.sleep(step.seconds)
            return None
        return await self.call(step)

    @asynccontextmanager
    async def _exchange(self, request: Request) -> AsyncIterator[httpx.Response]:
        outgoing = build_outgoing(request, request.origin or await self.url())
        if not isinstance(request.body, bytes):
            outgoing.stream = _AsyncBody(request.body)
        with self._mapped(request):
            response = await self.http.handle_async_request(outgoing)
        try:
            yield response
        finally:
            await finish(response.aclose())

    async def url(self) -> str:
        """Return where the gateway is now."""
        ready = self.origin.ready_url
        return ready if ready is not None else await asyncio.to_thread(self.origin.wait_url)

    async def chunks(self, response: httpx.Response, request: Request) -> AsyncIterator[bytes]:
        """Yield the content of an answer as it comes."""
        with self._mapped(request):
            async for chunk in response.aiter_raw():
                yield chunk

    @contextmanager
    def _mapped(self, request: Request) -> Iterator[None]:
        try:
            yield
        except httpx.TransportError as error:
            raise map_error(error, request, self.origin.label) from error


async def finish(work: Coroutine[Any, Any, T]) -> T:
    """Do something to its end, also when the task is cancelled meanwhile; then cancel it."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not task.cancelled():
            task.exception()
        raise cancelled
    return task.result()


async def _not_halfway(work: "asyncio.Future[T]") -> T:
    """Wait for something that takes moments; where the task is cancelled, give it those moments.

    A command that has been sent has no id yet by which it could be killed.
    """
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait([work], timeout=BEGIN_SECONDS)
        if not work.cancel() and not work.cancelled():
            work.exception()  # seen here: nobody else will ask
        raise


class _AsyncBody(httpx.AsyncByteStream):
    """Content whose pieces are read in worker threads, since a disk may be slow."""

    def __init__(self, body: Body) -> None:
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        pieces = iter(self._body)
        while (piece := await asyncio.to_thread(next, pieces, _END)) is not _END:
            assert isinstance(piece, bytes)
            yield piece


async def _read_some(response: httpx.Response) -> bytes:
    body = b""
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) >= ERROR_BODY_BYTES:
            break
    return body
