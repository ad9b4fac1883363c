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
CLIENT = httpx.AsyncClient(
    timeout=180, limits=httpx.Limits(max_connections=None, max_keepalive_connections=20_000)
)


async def forward(request: Request) -> StreamingResponse:
    """Send the request on and stream the answer back."""
    index = int(request.headers["x-sandbox-id"].removeprefix("sb-"))
    fields = [(name, value) for name, value in request.headers.items() if name not in DROPPED]
    url = f"http://{address(index)}:{PORT}{request.url.path}"
    outgoing = CLIENT.build_request(request.method, url, headers=fields, content=request.stream())
    answer = await CLIENT.send(outgoing, stream=True)
    headers = {name: value for name, value in answer.headers.items() if name not in DROPPED}
    return StreamingResponse(answer.aiter_raw(), answer.status_code, headers)


METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]
APP = Starlette(routes=[Route("/{path:path}", forward, methods=METHODS)])

if __name__ == "__main__":
    uvicorn.run(APP, host="127.0.0.1", port=int(sys.argv[1]), log_level="error", access_log=False)
