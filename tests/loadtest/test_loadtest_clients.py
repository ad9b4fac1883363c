"""What the clients of the measurements count as right, on real sockets where there are any."""

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from loadtest.client_programs.stream import decode_chunks, follow
from loadtest.messages import ask, build_request, is_whole
from loadtest.stubs import build_event, build_events

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@pytest.mark.parametrize(
    ("answer", "whole"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", True),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\no", False),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n", False),
        (b"HTTP/1.1 204 No Content\r\n\r\n", True),
    ],
)
def test_an_answer_is_whole_with_its_last_byte(answer: bytes, whole: bool) -> None:
    assert is_whole(answer) is whole


@pytest.mark.parametrize("answer", [b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n", b""])
def test_another_answer_than_200_ends_the_client(answer: bytes, pair: Pair) -> None:
    ours, theirs = pair
    theirs.sendall(answer)
    theirs.shutdown(socket.SHUT_WR)

    with pytest.raises(SystemExit, match="answer"):
        ask(ours, build_request(0))


def test_no_two_requests_are_alike() -> None:
    assert build_request(0, 1) != build_request(0, 2)


def test_chunks_that_are_none_end_the_client() -> None:
    assert decode_chunks(b"2\r\nab\r\n0\r\n\r\n") == b"ab"
    with pytest.raises(SystemExit, match="chunks"):
        decode_chunks(b"2\r\nabc\r\n0\r\n\r\n")


def test_a_stream_whose_pieces_are_held_back_ends_the_client(pair: Pair) -> None:
    ours, theirs = pair
    ours.settimeout(0.2)
    theirs.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    with socket.socket() as arrived, pytest.raises(SystemExit, match="piece 1 of 3 is held back"):
        follow(ours, arrived, 3)


def test_each_piece_is_acknowledged_before_the_next_is_sent(pair: Pair) -> None:
    ours, theirs = pair
    here, there = socket.socketpair()
    with here, there:

        def send() -> None:
            theirs.recv(65536)
            theirs.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            for index in range(3):
                event = build_event(index)
                theirs.sendall(b"%x\r\n%b\r\n" % (len(event), event))
                assert there.recv(65536) == b"."
            theirs.sendall(b"0\r\n\r\n")

        sender = threading.Thread(target=send)
        sender.start()
        ours.settimeout(10)
        received = follow(ours, here, 3)
        sender.join()

    assert decode_chunks(received.partition(b"\r\n\r\n")[2]) == build_events(3)


def test_a_scenario_that_does_not_exist_is_refused_by_name() -> None:
    command = [sys.executable, "-m", "loadtest", "--scenario", "nonsense"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 2
    assert "nonsense" in done.stderr
