"""One exchange of the control app, run by uvicorn's request-response cycle.

The only place that touches a private class of uvicorn, which is why pyproject.toml bounds its
version and a test checks what is used here. The cycle is given a transport that leaves the close
after an answer to the connection, which lingers, and a flow object that pauses through the
connection, so that the two never disagree about who paused the reading.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Protocol, cast
from urllib.parse import unquote

import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
from uvicorn.server import ServerState

from sandgate_router.head import RequestHead

log = logging.getLogger("sandgate.control")

CONTENT_HIGH_WATER = 64 * 1024
"""Content waiting for the app above which the client is paused."""


class AppClient(Protocol):
    """The client's side of an exchange with the control app."""

    @property
    def transport(self) -> asyncio.Transport:
        """Where the cycle writes."""

    @property
    def full(self) -> bool:
        """Whether the client reads too slowly for more."""

    @property
    def closing(self) -> bool:
        """Whether the connection is to end after this exchange."""

    def pause_content(self) -> None:
        """Stop taking the request's content."""

    def resume_content(self) -> None:
        """Take the request's content again."""

    def finish(self, *, status: int, keep_alive: bool) -> None:
        """End the exchange after a whole response."""


class AppHost:
    """The control app as uvicorn loaded it, and the tasks that run it."""

    def __init__(
        self, config: uvicorn.Config, state: ServerState, app_state: dict[str, Any]
    ) -> None:
        self.app = config.loaded_app
        self.app_state = app_state
        self.state = state

    def exchange(self, client: AppClient, head: RequestHead) -> "AppExchange":
        """Return an exchange that has not begun."""
        return AppExchange(self, client, head)


class AppExchange:
    """One request that the control app answers."""

    def __init__(self, host: AppHost, client: AppClient, head: RequestHead) -> None:
        self._host = host
        self._client = client
        self._head = head
        self._status = 500
        self._flow = _Flow(client)
        self._content = asyncio.Event()
        self._cycle = RequestResponseCycle(
            scope=cast(Any, self._scope()),
            transport=cast(asyncio.Transport, _CycleTransport(self, client.transport)),
            flow=self._flow,
            logger=log,
            access_logger=log,
            access_log=False,
            default_headers=host.state.default_headers,
            message_event=self._content,
            expect_100_continue=b"expect" in head.values and head.http_1_1,
            keep_alive=head.keep_alive and not client.closing,
            on_response=self._on_response,
        )

    @property
    def answering(self) -> bool:
        """Whether the head of the response is out."""
        return self._cycle.response_started

    @property
    def answered(self) -> bool:
        """Whether the whole response is out."""
        return self._cycle.response_complete

    def start(self, content: bytes, *, last: bool) -> None:
        """Run the app in a task that the server waits for."""
        if content or last:
            self.content(content, last=last)
        task = asyncio.get_running_loop().create_task(self._cycle.run_asgi(self._app))
        self._host.state.tasks.add(task)
        task.add_done_callback(self._host.state.tasks.discard)

    def content(self, data: bytes, *, last: bool) -> None:
        """Take the next piece of the request's content from the client."""
        self._cycle.body += data
        self._cycle.more_body = not last
        self._content.set()
        if len(self._cycle.body) > CONTENT_HIGH_WATER:
            self._client.pause_content()

    def client_gone(self) -> None:
        """Tell the app by `http.disconnect`."""
        self._cycle.disconnected = True
        self._content.set()
        self._flow.resume_writing()

    def client_full(self) -> None:
        """Let the app wait before it sends more."""
        self._flow.pause_writing()

    def client_writable(self) -> None:
        """Let the app go on sending."""
        self._flow.resume_writing()

    async def _app(self, scope: Any, receive: Any, send: Callable[[Any], Any]) -> None:
        async def noting_status(message: Any) -> None:
            if message["type"] == "http.response.start":
                self._status = message["status"]
            await send(message)

        await self._host.app(scope, receive, cast(Any, noting_status))

    def _on_response(self) -> None:
        cycle = self._cycle
        self._client.finish(
            status=self._status, keep_alive=cycle.keep_alive and not cycle.more_body
        )

    def _scope(self) -> dict[str, Any]:
        head = self._head
        raw_path, _, query = head.target.partition(b"?")
        transport = self._client.transport
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1" if head.http_1_1 else "1.0",
            "server": transport.get_extra_info("sockname")[:2],
            "client": transport.get_extra_info("peername")[:2],
            "scheme": "http",
            "method": head.method.decode("ascii"),
            "root_path": "",
            "path": unquote(raw_path.decode("ascii")),
            "raw_path": raw_path,
            "query_string": query,
            "headers": head.fields,
            "state": self._host.app_state.copy(),
        }


class _CycleTransport:
    """The client's transport as the cycle uses it."""

    def __init__(self, exchange: AppExchange, transport: asyncio.Transport) -> None:
        self._exchange = exchange
        self._transport = transport

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def close(self) -> None:
        """Close in the middle of an answer; after a whole one the connection does it.

        A close with unread bytes of the client would reset the connection, and the answer with it.
        """
        if not self._exchange.answered:
            self._transport.close()


class _Flow(FlowControl):
    """Backpressure of one cycle, passed on to the connection that owns the transport."""

    def __init__(self, client: AppClient) -> None:
        super().__init__(client.transport)
        self._client = client
        if client.full:
            self.pause_writing()

    def resume_reading(self) -> None:
        self._client.resume_content()
