"""Where is this sandbox: the table first, the registry's own question after a miss.

Many requests for one unknown sandbox ask once (single flight), for at most a second, and a
negative answer is remembered for a second, so that guessing names costs the registry nothing.
"""

import asyncio
import functools
from collections.abc import Callable
from weakref import WeakSet

from sandgate_router.denied import Denied
from sandgate_router.errors import RegistryUnavailable, SandboxNotFound, SandboxReplaced
from sandgate_router.pod_ip import PodIp
from sandgate_router.registry.base import Endpoint, Registry
from sandgate_router.target import Routing, Target

LOOK_UP_SECONDS = 1.0
"""Longest wait for the registry after a miss."""

NEGATIVE_SECONDS = 1.0
"""How long `there is none` is believed: a claim elsewhere becomes routable within it."""

MAX_NEGATIVES = 10_000
"""Negative answers remembered at most, against a scan of names."""


class Resolver:
    """Finds the endpoint of a target."""

    def __init__(
        self, registry: Registry, *, clock: Callable[[], float], denied: Denied, pod_ip: PodIp
    ) -> None:
        """Ask `registry`, but for what `denied` refuses and `pod_ip` answers by itself."""
        self._registry = registry
        self._denied = denied
        self._pod_ip = pod_ip
        self._clock = clock
        self._under_way: dict[Target, asyncio.Task[Endpoint | None]] = {}
        self._negatives: dict[Target, float] = {}
        self._gone: WeakSet[Endpoint] = WeakSet()

    def endpoint(self, routing: Routing, uid: str | None) -> Endpoint | None:
        """Return the endpoint from memory, or None on a miss.

        Args:
            uid: the only generation that the caller may reach; None is any.

        Raises:
            SandboxReplaced: it, or the one that the client insists on, is another.
            NotAllowedHere: the name, the address or the port is never served.
            InvalidPodIp: the address is none.
        """
        self._denied.check(routing.target)
        if routing.pod_ip is not None:
            named = self._pod_ip.endpoint_for(routing)
            if named is not None:
                return named
        endpoint = self._registry.endpoint(routing.target)
        if endpoint is not None and routing.pod_ip is not None:
            self._pod_ip.verify(routing, endpoint)
        if endpoint is not None and (uid is not None or routing.uid is not None):
            _check_generation(endpoint, routing.uid, uid)
        return endpoint

    async def find(self, routing: Routing, uid: str | None) -> Endpoint:
        """Ask the registry after a miss; raise SandboxNotFound when there is none."""
        target = routing.target
        now = self._clock()
        remembered = self._negatives.get(target)
        if remembered is not None and remembered > now:
            raise SandboxNotFound
        task = self._under_way.get(target)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._ask(target))
            self._under_way[target] = task
            task.add_done_callback(functools.partial(self._answered, target))
        endpoint = await asyncio.shield(task)
        if endpoint is None:
            raise SandboxNotFound
        self._pod_ip.verify(routing, endpoint)
        _check_generation(endpoint, routing.uid, uid)
        return endpoint

    def forget(self, endpoint: Endpoint) -> None:
        """Remember that an endpoint left the table, for those who still hold it."""
        self._gone.add(endpoint)

    def is_gone(self, endpoint: Endpoint) -> bool:
        """Tell whether an endpoint left the table."""
        return endpoint in self._gone

    async def close(self) -> None:
        """End the questions under way."""
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _answered(self, target: Target, task: asyncio.Task[Endpoint | None]) -> None:
        del self._under_way[target]
        if not task.cancelled():
            task.exception()  # seen, also where everyone who asked has left

    async def _ask(self, target: Target) -> Endpoint | None:
        try:
            async with asyncio.timeout(LOOK_UP_SECONDS):
                endpoint = await self._registry.find(target)
        except TimeoutError as error:
            raise RegistryUnavailable("The registry did not answer in time.") from error
        if endpoint is None:
            if len(self._negatives) >= MAX_NEGATIVES:
                self._negatives.clear()
            self._negatives[target] = self._clock() + NEGATIVE_SECONDS
        return endpoint


def _check_generation(endpoint: Endpoint, wanted: str | None, allowed: str | None) -> None:
    """Raise SandboxReplaced where the client wants, or may reach, another generation."""
    # Where the registry knows no UID, what the client believes cannot be checked (design: dns).
    uid = endpoint.uid
    if uid is not None and (wanted not in (None, uid) or allowed not in (None, uid)):
        raise SandboxReplaced
