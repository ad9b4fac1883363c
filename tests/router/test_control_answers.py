"""What an endpoint's failure turns into, before and after its answer has begun."""

import httpx
import pytest
from starlette.types import Receive, Scope, Send
from support.running_gateway import running_gateway

from sandgate_router.control.answers import AnswerErrors
from sandgate_router.errors import ClaimNotFound


def failing(error: Exception, *, begun: bool) -> AnswerErrors:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        del scope, receive
        if begun:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"half", "more_body": True})
        raise error

    return AnswerErrors(app)


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [(ClaimNotFound(), 404, "claim_not_found"), (LookupError("a bug"), 500, "internal_error")],
)
async def test_a_failure_before_the_answer_is_told_in_its_place(
    error: Exception, status: int, code: str
) -> None:
    async with (
        running_gateway(failing(error, begun=False)) as gateway,
        httpx.AsyncClient() as client,
    ):
        answer = await client.get(f"http://127.0.0.1:{gateway.port}/")
    assert (answer.status_code, answer.json()["code"]) == (status, code)


@pytest.mark.parametrize("error", [ClaimNotFound(), LookupError("a bug")])
async def test_an_answer_that_fails_midway_breaks_off_and_never_ends_cleanly(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        running_gateway(failing(error, begun=True)) as gateway,
        httpx.AsyncClient() as client,
    ):
        with pytest.raises(httpx.RemoteProtocolError):
            await client.get(f"http://127.0.0.1:{gateway.port}/")
    assert [r.message for r in caplog.records].count("control.failed") == 1
    assert "Expected ASGI message" not in caplog.text  # no second answer was tried
