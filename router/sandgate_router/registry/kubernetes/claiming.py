"""One claim, from the request to a sandbox that is ready.

The claim is an object that is created under a name which is known before, so an answer that
gets lost is no loss: the object is asked for again, and recognised by its hash. Whether it is
ready is seen on the one watch that all claims share; only where that is silent is a claim
asked for by itself, now and then.

Whoever gives up takes back what this call has created. A claim with a key may have been
joined through another replica meanwhile, so that is taken back only in the very version in
which it was seen to be unready.
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from sandgate_router.errors import (
    ClaimExists,
    DestinationProhibited,
    Draining,
    IdempotencyKeyReused,
    SandboxNotReady,
)
from sandgate_router.kube.backoff import Backoff
from sandgate_router.kube.client import KubeClient
from sandgate_router.kube.errors import Conflict, KubeError, NotFound, Refused
from sandgate_router.kube.resources import SANDBOX_CLAIMS
from sandgate_router.registry.kubernetes.claim_table import ClaimTable
from sandgate_router.registry.kubernetes.look_up import LookUp
from sandgate_router.registry.kubernetes.objects import ClaimObject
from sandgate_router.registry.kubernetes.outcome import (
    build_failure,
    build_refusal,
    build_timeout,
    judge,
)
from sandgate_router.registry.kubernetes.plan import HASH, Plan
from sandgate_router.registry.kubernetes.table import Entry, SandboxTable

API_SECONDS = 5.0
"""How long creating may take with all its tries, however short one wants to wait: an API server
under load answers 429 and wants to be asked again after a second."""

POLL_SECONDS = 2.0
MAX_POLL_SECONDS = 10.0
"""How long the watch may say nothing of a claim before it is asked for, doubling to the second."""

TAKE_BACK_TRIES = 4
"""A claim that cannot be deleted ends with its lease."""

CLOSE_SECONDS = 5.0
"""How long the end waits for what is under way; what is left over ends with its lease."""

RETRY_SECONDS = 2
"""Retry-After where no member was ready: about as long as a pod takes to start."""

T = TypeVar("T")

log = logging.getLogger("sandgate.registry")


class Claiming:
    """Makes claims."""

    def __init__(
        self, client: KubeClient, sandboxes: SandboxTable, claims: ClaimTable, look_up: LookUp
    ) -> None:
        """Take what is asked, and what knows."""
        self._client = client
        self._sandboxes = sandboxes
        self._claims = claims
        self._look_up = look_up
        self._tasks: set[asyncio.Task[Any]] = set()
        self._calls: set[asyncio.Future[None]] = set()
        """One for each call of `claim`, done when that has left nothing to do."""
        self._closing = False

    async def claim(self, plan: Plan, *, seconds: float) -> tuple[ClaimObject, Entry]:
        """Return a claim and its sandbox once that is ready.

        Raises:
            GatewayError: it exists, failed, or was not ready in time.
        """
        call = asyncio.get_running_loop().create_future()
        self._calls.add(call)
        try:
            return await self._claim(plan, asyncio.get_running_loop().time() + seconds)
        finally:
            self._calls.discard(call)
            call.set_result(None)

    async def close(self) -> None:
        """Send away who waits, and finish what is under way."""
        self._closing = True
        self._claims.wake_all()
        if under_way := self._calls | self._tasks:
            await asyncio.wait(under_way, timeout=CLOSE_SECONDS)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _claim(self, plan: Plan, deadline: float) -> tuple[ClaimObject, Entry]:
        while True:
            posting = self._keep(self._post(plan, deadline))
            try:
                claim, is_ours = await asyncio.shield(posting)
            except asyncio.CancelledError:
                self._keep(self._take_back_posted(posting, plan))
                raise
            try:
                bound = await self._wait(claim, deadline)
            except BaseException:
                if is_ours:
                    # Shielded: who leaves must not keep it from being taken back.
                    await asyncio.shield(self._keep(self._take_back(claim, plan)))
                raise
            if bound is not None:
                return bound
            if not plan.is_keyed:
                raise SandboxNotReady("The claim was released before it was ready.")
            # Another replica gave up this key's claim, and its client has come to us.

    async def _post(self, plan: Plan, deadline: float) -> tuple[ClaimObject, bool]:
        """Return the claim, and whether it was created for this call."""
        loop = asyncio.get_running_loop()
        deadline = max(deadline, loop.time() + API_SECONDS)
        backoff = Backoff(first=0.05, most=2.0)
        in_doubt = False
        while True:
            left = deadline - loop.time()
            try:
                content = await self._client.create(
                    SANDBOX_CLAIMS,
                    plan.namespace,
                    plan.body,
                    seconds=min(max(0.5, left), API_SECONDS),
                )
                return self._look_up.learn_claim(content), True
            except Conflict as error:
                found = await self._find_taken(plan, error)
                if found is not None:
                    return found, in_doubt and not plan.is_keyed
                failure: KubeError = error
            except KubeError as error:
                if isinstance(error, Refused) and error.is_lasting:
                    raise build_refusal(error) from error
                in_doubt, failure = True, error
            wait = backoff.next(getattr(failure, "retry_after", None))
            if loop.time() + wait >= deadline:
                if isinstance(failure, Conflict):
                    raise ClaimExists from failure
                raise build_refusal(failure) from failure
            await asyncio.sleep(wait)

    async def _find_taken(self, plan: Plan, error: Conflict) -> ClaimObject | None:
        """Return the claim that has the name, if it is this request's; None while it ends."""
        if not error.is_taken:
            return None
        try:
            found = await self._look_up.claim((plan.namespace, plan.name))
        except KubeError as failure:
            raise build_refusal(failure) from failure
        if found is None or found.is_ending:
            return None
        if found.annotations.get(HASH) == plan.hash:
            return found
        if plan.is_keyed and not plan.has_own_name:
            raise IdempotencyKeyReused
        raise ClaimExists

    async def _wait(self, claim: ClaimObject, deadline: float) -> tuple[ClaimObject, Entry] | None:
        """Return the claim and its sandbox once ready; None when it was deleted."""
        loop = asyncio.get_running_loop()
        poll = POLL_SECONDS
        while True:
            if self._closing:
                raise Draining
            signal = self._claims.signal(claim.uid)
            current = self._current(claim)
            if current is None or current.is_ending:
                return None
            state = judge(current)
            if state == "failed":
                raise build_failure(current)
            if state == "ready" and (entry := await self._find_sandbox(current)) is not None:
                return current, entry
            left = deadline - loop.time()
            if left <= 0:
                raise build_timeout(current, retry_after=RETRY_SECONDS)
            await asyncio.wait({signal}, timeout=min(left, poll))
            if not signal.done() and loop.time() < deadline:
                poll = min(2 * poll, MAX_POLL_SECONDS)
                await self._ask(claim)

    def _current(self, claim: ClaimObject) -> ClaimObject | None:
        current = self._claims.get(claim.key)
        if current is not None and current.uid == claim.uid:
            return current
        return None if self._claims.is_ended(claim.uid) else claim

    async def _find_sandbox(self, claim: ClaimObject) -> Entry | None:
        """Return a claim's sandbox, asked for once if the watch has not told of it yet."""
        entry = self._sandboxes.of_claim(claim.uid)
        if entry is None or entry.standing != "ready":
            try:
                entry = await self._look_up.sandbox((claim.key[0], _label(claim)))
            except KubeError as error:
                log.info("claim.sandbox_unknown", extra={"reason": str(error)})
                return None
        if entry is None or entry.claim != claim.uid:
            return None
        if entry.standing == "prohibited":
            raise DestinationProhibited
        return entry if entry.standing == "ready" else None

    async def _ask(self, claim: ClaimObject) -> None:
        try:
            await self._look_up.claim(claim.key)
        except KubeError as error:
            log.info("claim.state_unknown", extra={"reason": str(error)})

    async def _take_back_posted(
        self, posting: "asyncio.Task[tuple[ClaimObject, bool]]", plan: Plan
    ) -> None:
        await asyncio.wait({posting})
        if posting.exception() is None:
            claim, is_ours = posting.result()
            if is_ours:
                await self._take_back(claim, plan)

    async def _take_back(self, claim: ClaimObject, plan: Plan) -> None:
        """Delete a claim that nobody waits for."""
        backoff = Backoff(first=0.1, most=2.0)
        for _ in range(TAKE_BACK_TRIES):
            current = self._current(claim)
            if current is None:
                return
            if plan.is_keyed and judge(current) == "ready":
                return  # the key leads to it
            version = str(current.version) if plan.is_keyed else None
            try:
                await self._client.delete(
                    SANDBOX_CLAIMS, *claim.key, uid=claim.uid, version=version
                )
            except NotFound:
                pass
            except Conflict:
                await self._ask(claim)
                continue
            except KubeError:
                await asyncio.sleep(backoff.next())
                continue
            self._claims.forget(claim.key, claim.uid)
            return
        log.warning("claim.left", extra={"namespace": claim.key[0], "claim": claim.key[1]})

    def _keep(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _label(claim: ClaimObject) -> Any:
    return claim.sandbox
