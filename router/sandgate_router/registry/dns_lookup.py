"""One question to the resolvers of this machine: which addresses has this name.

Names are absolute, so no search domain is ever tried: `a.b.svc.cluster.local` has fewer dots
than Kubernetes' `ndots`, and whoever owns a search domain could answer first. dnspython reads
/etc/resolv.conf and the messages. The sockets are ours: each query has one of its own, so a
forger has to guess its port as well, and it is connected, so a resolver that is down is
known at once; dnspython's leak under uvloop when a question is given up.

Nothing is remembered here.
"""

import asyncio
import ipaddress
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import dns.exception
import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdatatype
import dns.resolver

from sandgate_router.addresses import IpAddress
from sandgate_router.errors import ConnectionTimeout, DnsError

RESOLV_CONF = Path("/etc/resolv.conf")

TRY_SECONDS = 0.25
"""How long a resolver has for one try. In a cluster a lost packet is the usual cause, and
glibc's 5 s would be longer than anybody waits here; so resolv.conf's time-out is not read."""

TRIES = 3
"""For one question, over all resolvers; resolv.conf has three of them at most."""

MAX_ADDRESSES = 64
"""Addresses that are looked at in one answer; a sandbox has one or two."""


class BadResolvConf(Exception):
    """No resolver can be asked; the message says which file is to be mended."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a name stands for, and for how long."""

    addresses: tuple[IpAddress, ...]
    """At least one; IPv4 where there is any."""
    ttl: float
    """Seconds, the least along a chain of aliases."""


class Lookup(Protocol):
    """Answers one question at a time."""

    async def addresses(self, name: str) -> Answer:
        """Return the addresses of an absolute name.

        Raises:
            NoSuchName: there is no such name, or it has no address.
            DnsError: the resolvers gave no usable answer.
            DnsTimeout: they gave none in time.
        """


class DnsTimeout(ConnectionTimeout):
    """No resolver answered in time, so nothing was dialled."""

    detail = "Timed out resolving the sandbox's name"
    proxy_error = "dns_timeout"


class NoSuchName(DnsError):
    """The resolvers know that there is nothing, which is more than not to know."""


class StubResolver:
    """Asks the resolvers of a resolv.conf, over UDP, and over TCP where an answer is cut off."""

    def __init__(self, resolv_conf: Path = RESOLV_CONF, *, port: int = 53) -> None:
        """Read the file; raise BadResolvConf when it names no resolver."""
        self._servers = _read_servers(resolv_conf)
        self._port = port

    def __repr__(self) -> str:
        return f"<StubResolver {', '.join(self._servers)}>"

    async def addresses(self, name: str) -> Answer:
        """Return the addresses of an absolute name: IPv4, or IPv6 where it has no other."""
        absolute = dns.name.from_text(f"{name}.")
        for kind in (dns.rdatatype.A, dns.rdatatype.AAAA):
            response = await self._ask(dns.message.make_query(absolute, kind))
            if response.rcode() == dns.rcode.NXDOMAIN:
                raise NoSuchName
            if (answer := _parse_answer(response)) is not None:
                return answer
        raise NoSuchName

    async def _ask(self, query: dns.message.QueryMessage) -> dns.message.QueryMessage:
        servers = list(self._servers)
        for _ in range(TRIES):
            if not servers:
                break
            server = servers.pop(0)
            try:
                async with asyncio.timeout(TRY_SECONDS):
                    response = await self._exchange(server, query)
            except TimeoutError:
                servers.append(server)  # the packet may be lost, and the resolver well
            except (OSError, EOFError, dns.exception.DNSException):
                continue
            else:
                if response.rcode() in (dns.rcode.NOERROR, dns.rcode.NXDOMAIN):
                    return response
        raise DnsTimeout if servers else DnsError

    async def _exchange(
        self, server: str, query: dns.message.QueryMessage
    ) -> dns.message.QueryMessage:
        response = await _ask_by_udp(server, self._port, query)
        if response.flags & dns.flags.TC:
            response = await _ask_by_tcp(server, self._port, query)
        return response


def _read_servers(path: Path) -> list[str]:
    reader = dns.resolver.Resolver(configure=False)
    try:
        reader.read_resolv_conf(str(path))
    except (dns.exception.DNSException, OSError, ValueError) as error:
        raise BadResolvConf(f"{path}: no usable nameserver: {error}") from error
    return [str(server) for server in reader.nameservers]


async def _ask_by_udp(
    server: str, port: int, query: dns.message.QueryMessage
) -> dns.message.QueryMessage:
    family = socket.AF_INET6 if ":" in server else socket.AF_INET
    loop = asyncio.get_running_loop()
    with socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sock:
        sock.connect((server, port))
        sock.send(query.to_wire())
        while True:
            # What is no answer to this query is somebody else's try, and ends nothing.
            response = _parse_response(await loop.sock_recv(sock, 65_535), query)
            if response is not None:
                return response


async def _ask_by_tcp(
    server: str, port: int, query: dns.message.QueryMessage
) -> dns.message.QueryMessage:
    reader, writer = await asyncio.open_connection(server, port)
    try:
        wire = query.to_wire()
        writer.write(len(wire).to_bytes(2) + wire)
        length = int.from_bytes(await reader.readexactly(2))
        response = _parse_response(await reader.readexactly(length), query)
    finally:
        writer.transport.abort()
    if response is None:
        raise EOFError("the resolver's answer is no answer to the query")
    return response


def _parse_response(
    wire: bytes, query: dns.message.QueryMessage
) -> dns.message.QueryMessage | None:
    try:
        response = dns.message.from_wire(wire, ignore_trailing=True)
    except dns.exception.DNSException:
        return None
    if isinstance(response, dns.message.QueryMessage) and query.is_response(response):
        return response
    return None


def _parse_answer(response: dns.message.QueryMessage) -> Answer | None:
    """Return the addresses at the end of the chain of aliases; None where there are none."""
    try:
        chain = response.resolve_chaining()
    except dns.exception.DNSException as error:  # too long a chain
        raise DnsError from error
    if chain.answer is None:
        return None
    texts = [record.to_text() for record in chain.answer][:MAX_ADDRESSES]
    return Answer(tuple(map(ipaddress.ip_address, texts)), ttl=chain.minimum_ttl)
