"""One exchange after another: what the sandbox sees, what the client gets."""

import pytest
from support.raw_client import connect, request
from support.running_gateway import running_gateway
from support.scripted_upstream import OK, ScriptedUpstream, answer_ok, answering


async def test_a_request_reaches_its_sandbox_and_the_answer_comes_back() -> None:
    async with (
        ScriptedUpstream(answer_ok).running() as upstream,
        running_gateway() as gateway,
        connect(gateway.port) as client,
    ):
        gateway.registry.add("sb", upstream.port)
        await client.send(request("/hello?x=1", more="X-App: 1\r\nX-Sandbox-Token: t\r\n"))
        answer = await client.read_answer()
        assert (answer.status, answer.body) == (200, b"ok")
        assert upstream.heads == [
            b"GET /hello?x=1 HTTP/1.1\r\n"
            b"Host: sb.default.svc.cluster.local:8888\r\n"
            b"X-App: 1\r\n"
            b"X-Forwarded-For: 127.0.0.1\r\n"
            b"X-Forwarded-Host: localhost\r\n"
            b"X-Forwarded-Proto: http\r\n"
            b"Via: 1.1 sandgate\r\n\r\n"
        ]
        assert gateway.dials == 1
