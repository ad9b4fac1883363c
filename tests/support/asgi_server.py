"""An ASGI app behind a stock uvicorn on a loopback socket of its own."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn


@asynccontextmanager
async def serve(app: Any) -> AsyncIterator[str]:
    """Serve `app`; yield `HOST:PORT`. Connections still open at the end are closed."""
    listener = socket.create_server(("127.0.0.1", 0))
    # h11 lets methods through that httptools does not know.
    config = uvicorn.Config(
        app, http="h11", log_config=None, access_log=False, timeout_graceful_shutdown=5
    )
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup(sockets=[listener])
    host, port = listener.getsockname()
    try:
        yield f"{host}:{port}"
    finally:
        await server.shutdown(sockets=[listener])
