"""Sandboxes that the cluster's DNS knows: `<id>.<namespace>.svc.<cluster domain>`.

For a cluster without access to its API: whatever has such a name is a sandbox, on any port,
and nothing is known of its generation. The address that was checked is the one that is
dialled, so an answer that changes in between changes nothing.

An answer is believed for its TTL, within bounds, and asked for again a little before its end
while requests still come, so that none of them waits. An address that changes, and a name that
ends, take the endpoints of before out of the table. One slow name holds up nobody else: names
are asked side by side, and some questions at once are kept for names that are in use.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from sandgate_router.addresses import IpAddress, Verdict
from sandgate_router.errors import DestinationProhibited, DnsError
from sandgate_router.names import DEFAULT_PORT, Label, Port
from sandgate_router.registry.base import Endpoint
from sandgate_router.registry.dns_lookup import Answer, DnsTimeout, Lookup, NoSuchName
from sandgate_router.registry.routes_only import RoutesOnly
from sandgate_router.target import Target

log = logging.getLogger("sandgate.registry")

ANSWER_SECONDS = 0.75
"""Longest look-up, its wait for a turn included: well within the second for which the relay
waits for a registry, so that its client learns that DNS was slow."""

MIN_TTL = 1.0
"""Shortest belief in an answer: with a TTL of 0 every request would cost a question."""

MAX_TTL = 5.0
"""Longest: a sandbox that is replaced under its name is found by then. CoreDNS says 5 to 30."""

REFRESH_SHARE = 0.75
"""Part of its life after which an answer that is in use is asked for again."""

NEGATIVE_SECONDS = 1.0
"""How long a failure is believed."""

MAX_QUESTIONS = 64
"""Names asked for at once; each has one query under way. dnsmasq allows 150 in all."""

MAX_NEW_QUESTIONS = 48
"""How many of them may be for names without an address: guesses must not hold up the rest."""

MAX_NAMES = 16_384
"""Names remembered, about 1.3 KiB each. Above it the one that was answered longest ago goes."""

MAX_FAILURES = 10_000
"""Failures remembered, against a scan of names."""

MAX_PORTS = 256
"""Ports remembered of one name. A client that tries all 65,535 costs no more."""

_WORDS: dict[Verdict, str] = {
    "never": "of a class that is never dialled",
    "outside": "outside SANDGATE_UPSTREAM_NETWORKS",
}

_Name = tuple[Label, Label]
_Failure = type[DnsError] | type[DnsTimeout] | type[DestinationProhibited]


class Judge(Protocol):
    """Says which addresses may be dialled."""

    def judge(self, address: IpAddress) -> Verdict:
        """Tell whether `address` may be dialled."""


@dataclass(slots=True)
class _Known:
    """A name that has an address."""

    address: IpAddress
    refresh_at: float = 0.0
    until: float = 0.0
    endpoints: dict[Port, Endpoint] = field(default_factory=dict)


class DnsRegistry(RoutesOnly):
    """Routes to what a lookup finds."""

    kind = "dns"

    def __init__(
        self,
        lookup: Lookup,
        policy: Judge,
        *,
        cluster_domain: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._lookup = lookup
        self._policy = policy
        self._domain = cluster_domain
        self._clock = clock
        self._known: dict[_Name, _Known] = {}
        """In the order of their last answers."""
        self._failures: dict[_Name, tuple[float, _Failure]] = {}
        """Until when a failure is believed, and which."""
        self._under_way: dict[_Name, asyncio.Task[_Failure | None]] = {}
        self._questions = asyncio.Semaphore(MAX_QUESTIONS)
        self._new_questions = asyncio.Semaphore(MAX_NEW_QUESTIONS)
        self._quiet_until = 0.0

    def __repr__(self) -> str:
        return f"<DnsRegistry {len(self._known)} names, {len(self._under_way)} under way>"

    def endpoint(self, target: Target) -> Endpoint | None:
        """Return the endpoint of a name whose answer is still believed."""
        name = (target.namespace, target.sandbox)
        known = self._known.get(name)
        if known is None:
            return None
        now = self._clock()
        if now >= known.refresh_at:
            if now >= known.until:
                return None
            self._ask(name)
        return known.endpoints.get(target.port) or self._add_endpoint(name, known, target.port)

    async def find(self, target: Target) -> Endpoint | None:
        """Ask for the name, together with everyone who asks for it now.

        Raises:
            DnsError, DnsTimeout: it has no address, or none is known in time.
            DestinationProhibited: it has one that is not to be dialled.
        """
        name = (target.namespace, target.sandbox)
        until, failure = self._failures.get(name, (0.0, None))
        if failure is None or self._clock() >= until:
            failure = await self._wait_for(name)
        if failure is not None:
            raise failure
        known = self._known[name]
        return known.endpoints.get(target.port) or self._add_endpoint(name, known, target.port)

    async def start(self) -> None:
        """Do nothing: names are asked for when they are wanted."""

    async def close(self) -> None:
        """Give up the questions under way."""
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _wait_for(self, name: _Name) -> _Failure | None:
        began = self._clock()
        try:
            # What one client gives up is not lost for the others.
            return await asyncio.shield(self._ask(name))
        except asyncio.CancelledError:
            if self._clock() - began < ANSWER_SECONDS:
                raise
            # On a busy machine the relay's own limit may come first; DNS was slow all the same.
            return DnsTimeout

    def _ask(self, name: _Name) -> asyncio.Task[_Failure | None]:
        """Return the question under way for a name, begun now if there is none."""
        task = self._under_way.get(name)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._look_up(name))
            self._under_way[name] = task
            task.add_done_callback(lambda _: self._under_way.pop(name, None))
        return task

    async def _look_up(self, name: _Name) -> _Failure | None:
        namespace, sandbox = name
        turn = contextlib.nullcontext() if name in self._known else self._new_questions
        try:
            async with asyncio.timeout(ANSWER_SECONDS), turn, self._questions:
                answer = await self._lookup.addresses(f"{sandbox}.{namespace}.svc.{self._domain}")
        except (TimeoutError, DnsTimeout):
            return self._fail(name, DnsTimeout)
        except DnsError as error:
            return self._fail(name, type(error))
        except Exception:
            log.exception("dns.failed")  # a fault of ours; the next request asks again
            return self._fail(name, DnsError)
        return self._learn(name, answer)

    def _learn(self, name: _Name, answer: Answer) -> _Failure | None:
        for address in answer.addresses:
            # One bad address spoils the answer: a name that points at a sandbox and at the
            # metadata service is an attack, and the next answer may come in another order.
            verdict = self._policy.judge(address)
            if verdict != "allowed":
                self._warn(name, f"{address} is {_WORDS[verdict]}")
                return self._fail(name, DestinationProhibited)
        known = self._known.pop(name, None)
        if known is not None and known.address not in answer.addresses:
            self._end(known)
            known = None
        if known is None:
            known = _Known(answer.addresses[0])
            if len(self._known) >= MAX_NAMES:
                # Its endpoints are not announced as gone: the sandbox may well be alive.
                self._known.pop(next(iter(self._known)))
        life = min(max(answer.ttl, MIN_TTL), MAX_TTL)
        now = self._clock()
        known.refresh_at, known.until = now + life * REFRESH_SHARE, now + life
        self._known[name] = known
        self._failures.pop(name, None)
        return None

    def _fail(self, name: _Name, failure: _Failure) -> _Failure:
        now = self._clock()
        if issubclass(failure, NoSuchName | DestinationProhibited):
            if (ended := self._known.pop(name, None)) is not None:
                self._end(ended)
        else:
            self._warn(name, failure.detail)
            if (known := self._known.get(name)) is not None:
                # Not to know is no reason to doubt what is still believed.
                known.refresh_at = min(now + NEGATIVE_SECONDS, known.until)
        if len(self._failures) >= MAX_FAILURES:
            self._failures.clear()
        self._failures[name] = (now + NEGATIVE_SECONDS, failure)
        return failure

    def _add_endpoint(self, name: _Name, known: _Known, port: Port) -> Endpoint:
        if len(known.endpoints) >= MAX_PORTS:
            # Whoever walks the ports must not end what uses the usual one.
            oldest = next(other for other in known.endpoints if other != DEFAULT_PORT)
            self._tell_gone(known.endpoints.pop(oldest))
        endpoint = Endpoint(
            uid=None, name=f"{name[0]}/{name[1]}", host=str(known.address), port=port
        )
        known.endpoints[port] = endpoint
        return endpoint

    def _end(self, known: _Known) -> None:
        for endpoint in known.endpoints.values():
            self._tell_gone(endpoint)

    def _warn(self, name: _Name, reason: str) -> None:
        now = self._clock()
        if now < self._quiet_until:
            return  # resolvers that fail, fail for every name that anybody guesses
        self._quiet_until = now + 1.0
        log.warning(
            "dns.unusable", extra={"namespace": name[0], "sandbox": name[1], "reason": reason}
        )
