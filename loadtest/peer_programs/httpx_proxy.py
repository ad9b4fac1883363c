"""The proxy that many teams write: Starlette in front, httpx behind, streaming both ways."""

import sys

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from loadtest.configs import ROUTING_FIELDS
from loadtest.stubs import PORT, address

DROPPED = {name.lower() for name in ROUTING_FIELDS} | {"host", "connection", "transfer-encoding"}
FRAMING = {"content-length", "transfer-encoding"}
CLIENT = httpx.AsyncClient(
    timeout=180, limits=httpx.Limits(max_connections=None, max_keepalive_connections=20_000)
)


async def forward(request: Request) -> StreamingResponse:
    """Send the request on and stream the answer back."""
    index = int(request.headers["x-sandbox-id"].removeprefix("sb-"))
    fields = [(name, value) for name, value in request.headers.items() if name not in DROPPED]
    target = request.scope["raw_path"] + b"?" + request.scope["query_string"]
    url = httpx.URL(f"http://{address(index)}:{PORT}", raw_path=target.removesuffix(b"?"))
    # A stream is sent in chunks; a GET without content must not get any.
    content = request.stream() if FRAMING & set(request.headers) else None
    outgoing = CLIENT.build_request(request.method, url, headers=fields, content=content)
    answer = await CLIENT.send(outgoing, stream=True)
    headers = {name: value for name, value in answer.headers.items() if name not in DROPPED}
    return StreamingResponse(answer.aiter_raw(), answer.status_code, headers)


METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]
APP = Starlette(routes=[Route("/{path:path}", forward, methods=METHODS)])

if __name__ == "__main__":
    uvicorn.run(
        APP,
        host="127.0.0.1",
        port=int(sys.argv[1]),
        log_level="error",
        access_log=False,
        backlog=4096,
        timeout_keep_alive=620,
    )
