"""A stub that poses as a proxy: what the checks before a measurement make of it."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest
from loadtest.check import check_proxy
from loadtest.client_programs.newcomers import burst
from loadtest.client_programs.stream import decode_chunks, follow
from loadtest.messages import build_request
from loadtest.stubs import Stub, build_events


@pytest.fixture
def stub_port() -> Iterator[int]:
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(loop.create_server(Stub, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield server.sockets[0].getsockname()[1]
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    server.close()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()


def test_a_proxy_that_strips_nothing_and_leads_elsewhere_is_told_so(stub_port: int) -> None:
    fault = check_proxy(
        lambda _: contextlib.nullcontext((0, stub_port)), sandboxes=100, routes=True
    )

    assert fault is not None
    assert "X-Sandbox-ID went on" in fault
    assert "sb-99 led to 127.0.0.1, not 127.1.0.100" in fault
    assert "target" not in fault


def test_a_floor_that_reads_no_requests_need_not_route(stub_port: int) -> None:
    fault = check_proxy(
        lambda _: contextlib.nullcontext((0, stub_port)), sandboxes=100, routes=False
    )

    assert fault is None


def test_a_proxy_that_does_not_listen_is_not_timed() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        fault = check_proxy(lambda _: contextlib.nullcontext((0, port)), sandboxes=1, routes=True)

    assert fault is not None
    assert "refused" in fault


def test_a_stub_streams_as_many_events_as_are_asked_for(stub_port: int) -> None:
    address = ("127.0.0.1", stub_port)
    with socket.create_connection(address) as arrived, socket.create_connection(address) as client:
        client.settimeout(10)
        arrived.sendall(b"GET /arrived HTTP/1.1\r\n\r\n")
        for count in (1, 250):
            head, _, framed = follow(client, arrived, count).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 ")
            assert decode_chunks(framed) == build_events(count)


def test_every_newcomer_is_timed_once(stub_port: int) -> None:
    took = burst(stub_port, [build_request(one) for one in range(20)])

    assert len(took) == 20
    assert min(took) > 0
