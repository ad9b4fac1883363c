"""A DNS server on loopback that says what a test has written down, over UDP and TCP."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset


@dataclass(frozen=True, kw_only=True)
class Script:
    """How one name is answered."""

    a: tuple[str, ...] = ()
    aaaa: tuple[str, ...] = ()
    alias: str = ""
    """The name's CNAME; the addresses are then those of this name."""
    ttl: int = 30
    rcode: dns.rcode.Rcode = dns.rcode.NOERROR
    silent: bool = False
    """Whether no answer ever comes."""
    lost: int = 0
    """How many queries are lost before the first answer."""
    cut_off: bool = False
    """Whether an answer by UDP is truncated, so that TCP has to be used."""
    forged: str = ""
    """An address that somebody else answers first, without knowing the query's id."""
    garbage: bool = False
    """Whether the answer is no DNS message."""


NOTHING = Script(rcode=dns.rcode.NXDOMAIN)


class ScriptedDns:
    """Answers by `scripts`; a name without one does not exist."""

    def __init__(self) -> None:
        self.scripts: dict[str, Script] = {}
        self.queries: list[tuple[str, str, str]] = []
        """Name, type and transport of every query, in order."""
        self.held: set[str] = set()
        """Names of `silent` scripts that were asked for and are left without an answer."""
        self.port = 0

    def asked(self, name: str) -> int:
        """Return how often a name was asked for."""
        return sum(1 for query in self.queries if query[0] == name)

    def respond(self, raw: bytes, transport: str) -> list[bytes]:
        """Return the messages that answer a query."""
        query = dns.message.from_wire(raw)
        question = query.question[0]
        name = question.name.to_text()
        kind = dns.rdatatype.to_text(question.rdtype)
        self.queries.append((name, kind, transport))
        script = self.scripts.get(name, NOTHING)
        if script.silent or self.asked(name) <= script.lost:
            self.held.add(name)
            return []
        if script.garbage:
            return [raw[:2] + b"\xff" * 7]
        answer = _build_answer(query, name, kind, script)
        forged = []
        if script.forged:
            other = _build_answer(query, name, kind, Script(a=(script.forged,)))
            other.id = query.id ^ 1
            forged = [other.to_wire()]
        if script.cut_off and transport == "udp":
            answer.answer = []
            answer.flags |= dns.flags.TC
        return [*forged, answer.to_wire()]

    def resolv_conf(self, folder: Path, *lines: str) -> Path:
        """Write a resolv.conf that names this server, and more lines."""
        path = folder / "resolv.conf"
        path.write_text("\n".join(["nameserver 127.0.0.1", *lines, ""]))
        return path


def _build_answer(
    query: dns.message.Message, name: str, kind: str, script: Script
) -> dns.message.Message:
    answer = dns.message.make_response(query)
    answer.set_rcode(script.rcode)
    if script.rcode == dns.rcode.NOERROR:
        if script.alias:
            answer.answer.append(dns.rrset.from_text(name, 300, "IN", "CNAME", script.alias))
        if addresses := (script.a if kind == "A" else script.aaaa):
            answer.answer.append(
                dns.rrset.from_text(script.alias or name, script.ttl, "IN", kind, *addresses)
            )
    return answer


class _Udp(asyncio.DatagramProtocol):
    def __init__(self, server: ScriptedDns) -> None:
        self._server = server
        self._transport: asyncio.DatagramTransport

    def connection_made(self, transport: asyncio.DatagramTransport) -> None:  # type: ignore[override]
        self._transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        for message in self._server.respond(data, "udp"):
            self._transport.sendto(message, addr)


@contextlib.asynccontextmanager
async def scripted_dns(
    sockets: tuple[socket.socket, socket.socket] | None = None,
) -> AsyncIterator[ScriptedDns]:
    """Run the server on one port for both transports, or on a bound TCP and UDP socket."""
    server = ScriptedDns()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            length = int.from_bytes(await reader.readexactly(2))
            for message in server.respond(await reader.readexactly(length), "tcp"):
                writer.write(len(message).to_bytes(2) + message)
            await reader.read()
        writer.close()

    loop = asyncio.get_running_loop()
    by_tcp, by_udp = sockets or _bind_both()
    stream = await asyncio.start_server(serve, sock=by_tcp)
    datagram, _ = await loop.create_datagram_endpoint(lambda: _Udp(server), sock=by_udp)
    server.port = stream.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        stream.close()
        datagram.close()


def _bind_both() -> tuple[socket.socket, socket.socket]:
    while True:
        by_tcp = socket.create_server(("127.0.0.1", 0))
        by_udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            by_udp.bind(by_tcp.getsockname())
        except OSError:  # another program has that port for UDP
            by_tcp.close()
            by_udp.close()
        else:
            return by_tcp, by_udp
