"""A proxy on aiohttp's server and client, streaming both ways."""

import sys

import aiohttp
import uvloop
from aiohttp import web

from loadtest.configs import ROUTING_FIELDS
from loadtest.stubs import PORT, address

DROPPED = {name.lower() for name in ROUTING_FIELDS} | {"host", "connection", "transfer-encoding"}
SESSION = web.AppKey("session", aiohttp.ClientSession)


async def forward(request: web.Request) -> web.StreamResponse:
    """Send the request on and stream the answer back."""
    index = int(request.headers["X-Sandbox-ID"].removeprefix("sb-"))
    fields = [
        (name, value) for name, value in request.headers.items() if name.lower() not in DROPPED
    ]
    async with request.app[SESSION].request(
        request.method,
        f"http://{address(index)}:{PORT}{request.raw_path}",
        headers=fields,
        data=request.content if request.body_exists else None,
        allow_redirects=False,
    ) as answer:
        response = web.StreamResponse(status=answer.status)
        for name, value in answer.headers.items():
            if name.lower() not in DROPPED:
                response.headers.add(name, value)
        await response.prepare(request)
        async for piece in answer.content.iter_any():
            await response.write(piece)
        await response.write_eof()
        return response


async def build() -> web.Application:
    """Return the app with a session that keeps connections."""
    app = web.Application(client_max_size=0)
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=60)
    app[SESSION] = aiohttp.ClientSession(
        connector=connector, auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar()
    )
    app.router.add_route("*", "/{path:.*}", forward)
    return app


if __name__ == "__main__":
    uvloop.install()
    # The stock backlog of 128 lets newcomers wait for a second until they knock again.
    port = int(sys.argv[1])
    web.run_app(build(), host="127.0.0.1", port=port, access_log=None, print=None, backlog=4096)
