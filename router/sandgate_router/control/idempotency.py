"""Claims by key: whoever repeats a request with its Idempotency-Key gets the same claim.

A client whose connection broke cannot know whether it holds a claim; with a key it simply asks
again (draft-ietf-httpapi-idempotency-key-header). All requests that come with one key while
the first is under way wait for one claim, which is given up when all of their clients have
left. What was answered is remembered until the claim has ended and a day more. What failed is
not: nothing was claimed, and the key is free again.

Keys live in this gateway's memory, as its local claims do; they are apart for each caller
and namespace. A registry whose claims outlive the gateway finds them by key itself, on every
replica: then only requests that come at once are joined here, and what was won is not given
up, since its client may have come to another replica.
"""

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from starlette.types import Receive

from sandgate_router.control.waiting import give_up, wait_while_connected
from sandgate_router.errors import IdempotencyKeyReused, InvalidRequest
from sandgate_router.names import Label
from sandgate_router.registry.base import Claim, ClaimRequest, Registry

KEEP_SECONDS = 24 * 3600.0
"""How long a key is remembered after its claim has ended: a client that was cut off for a
night and repeats its request still gets no second claim."""

MAX_KEYS = 10_000
"""Keys that are remembered; each takes about 2 KiB. Only those of claims that have ended make
room for others, the oldest first: live claims are as many as the pools allow."""

_ROOM = 1000
"""Keys that are forgotten at once, so that not every claim pays for looking through them."""

SWEEP_SECONDS = 60.0
"""How often keys are compared with the live claims. An end noticed late keeps a key longer."""

Place = tuple[str | None, Label, str]
"""A caller, a namespace and a key of the caller's in it."""

_KEY = re.compile(r"[\x21-\x7e]{1,255}")


@dataclass(slots=True, eq=False)
class _Attempt:
    """The one claim behind a key: under way, or won and remembered."""

    wanted: ClaimRequest
    claiming: "asyncio.Task[Claim]"
    waiting: int = 0
    """Clients that wait for it."""
    answer: bytes | None = None
    """What its clients are told; None until the first of them is."""
    giving_up: "asyncio.Task[None] | None" = None
    """Set once all clients have left before it was answered."""
    ended_at: float | None = None
    """When its claim was first seen to have ended."""


class KeyedClaims:
    """The claims that were made with a key, by caller, namespace and key."""

    def __init__(
        self,
        registry: Registry,
        *,
        build_answer: Callable[[Claim], bytes],
        clock: Callable[[], float],
    ) -> None:
        """Know no key yet.

        Args:
            registry: what is asked for claims.
            build_answer: called once for each claim; what it returns is told each time.
            clock: seconds that never go back.
        """
        self._registry = registry
        self._build_answer = build_answer
        self._clock = clock
        self._attempts: dict[Place, _Attempt] = {}
        self._swept_at = clock()
        self._full = MAX_KEYS

    def __len__(self) -> int:
        return len(self._attempts)

    async def claim(self, key: str, wanted: ClaimRequest, receive: Receive) -> bytes:
        """Claim, or join the claim that this key has made; return the answer's body.

        Raises:
            IdempotencyKeyReused: the key came with another request before.
            ClientDisconnect: the client has left; when it was the last, it holds no claim.
            GatewayError: what the registry refused with.
        """
        place = (wanted.caller, wanted.namespace, key)
        self._sweep()
        attempt = await self._find(place)
        if attempt is None:
            claiming = asyncio.create_task(self._registry.claim(wanted), name="claim")
            attempt = self._attempts[place] = _Attempt(wanted, claiming)
        elif attempt.wanted != wanted:
            raise IdempotencyKeyReused
        if attempt.answer is None:
            await self._wait(place, attempt, receive)
        if attempt.answer is None:
            attempt.answer = self._build_answer(attempt.claiming.result())
        if self._registry.keeps_keys:
            self._forget(place, attempt)
        return attempt.answer

    async def _find(self, place: Place) -> _Attempt | None:
        """Return the attempt of a key, once none is being given up."""
        while (attempt := self._attempts.get(place)) is not None:
            if attempt.giving_up is None:
                return attempt
            await asyncio.wait({attempt.giving_up})
        return None

    async def _wait(self, place: Place, attempt: _Attempt, receive: Receive) -> None:
        """Wait for the claim together with others; raise what ended the wait or the claim."""
        attempt.waiting += 1
        try:
            await wait_while_connected(attempt.claiming, receive)
        except BaseException:  # this client has left, or we are cancelled ourselves
            attempt.waiting -= 1
            await self._leave(place, attempt)
            raise
        attempt.waiting -= 1
        if attempt.claiming.cancelled() or attempt.claiming.exception() is not None:
            self._forget(place, attempt)
            attempt.claiming.result()

    async def _leave(self, place: Place, attempt: _Attempt) -> None:
        """Give the claim up, unless somebody else waits for it or was told of it."""
        if attempt.waiting or attempt.answer is not None:
            return

        async def finish() -> None:
            try:
                if self._registry.keeps_keys:
                    attempt.claiming.cancel()
                    await asyncio.wait({attempt.claiming})
                else:
                    await give_up(self._registry, attempt.claiming)
            finally:
                self._forget(place, attempt)

        attempt.giving_up = asyncio.create_task(finish(), name="give up")
        await asyncio.shield(attempt.giving_up)

    def _forget(self, place: Place, attempt: _Attempt) -> None:
        if self._attempts.get(place) is attempt:
            del self._attempts[place]

    def _sweep(self) -> None:
        """Now and then forget what is old, and what ended first where there are too many."""
        now = self._clock()
        if len(self._attempts) < self._full and now - self._swept_at < SWEEP_SECONDS:
            return
        self._swept_at = now
        ended = self._note_ends(now)
        surplus = _ROOM if len(self._attempts) >= MAX_KEYS else 0
        for number, (place, since) in enumerate(ended):
            if number < surplus or now - since >= KEEP_SECONDS:
                del self._attempts[place]
        # Where all are live there is nothing to forget, and no use in looking again at once.
        count = len(self._attempts)
        self._full = MAX_KEYS if count < MAX_KEYS else count + _ROOM

    def _note_ends(self, now: float) -> list[tuple[Place, float]]:
        """Return the keys whose claim has ended and since when, the oldest end first."""
        live = {(claim.namespace, claim.uid) for claim in self._registry.claims()}
        ended = []
        for place, attempt in self._attempts.items():
            if attempt.answer is None:
                continue
            claim = attempt.claiming.result()
            if (claim.namespace, claim.uid) in live:
                continue
            if attempt.ended_at is None:
                attempt.ended_at = now
            ended.append((place, attempt.ended_at))
        return sorted(ended, key=lambda pair: pair[1])


def parse_key(lines: Sequence[str]) -> str | None:
    """Return the key of a request from the lines of its Idempotency-Key; None without any.

    Raises:
        InvalidRequest: it is no key, or came twice.
    """
    if not lines:
        return None
    if len(lines) > 1 or _KEY.fullmatch(lines[0]) is None:
        raise InvalidRequest(
            "Idempotency-Key must come once, with 1 to 255 printable ASCII characters and no space"
        )
    return lines[0]
