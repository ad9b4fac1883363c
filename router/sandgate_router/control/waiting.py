"""A claim on behalf of clients that may leave while they wait.

Nobody would ever release what was claimed for a client that is gone, so its departure ends
the wait, and a claim that was won at the same moment is given back at once.
"""

import asyncio

from starlette.requests import ClientDisconnect
from starlette.types import Receive

from sandgate_router.registry.base import Claim, ClaimRequest, Registry


async def claim_while_connected(
    registry: Registry, request: ClaimRequest, receive: Receive
) -> Claim:
    """Claim, unless the client leaves before.

    Args:
        registry: what is asked.
        request: what is wanted.
        receive: the exchange's ASGI channel, its body read to the end.

    Raises:
        ClientDisconnect: the client has left; it holds no claim.
        GatewayError: what the registry refused with.
    """
    claiming = asyncio.create_task(registry.claim(request), name="claim")
    try:
        await wait_while_connected(claiming, receive)
    except BaseException:  # the client has left, or we are cancelled ourselves
        await give_up(registry, claiming)
        raise
    return claiming.result()


async def wait_while_connected(claiming: "asyncio.Task[Claim]", receive: Receive) -> None:
    """Return once the task is done; raise ClientDisconnect when the client leaves before."""
    leaving = asyncio.create_task(_wait_for_departure(receive), name="departure")
    try:
        await asyncio.wait({claiming, leaving}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        leaving.cancel()
        await asyncio.wait({leaving})
    if not leaving.cancelled():
        leaving.result()
        raise ClientDisconnect


async def give_up(registry: Registry, claiming: "asyncio.Task[Claim]") -> None:
    """End a claim that nobody waits for any more, whether it is under way or won."""
    claiming.cancel()
    await asyncio.wait({claiming})
    if not claiming.cancelled() and claiming.exception() is None:
        claim = claiming.result()
        await registry.release(claim.namespace, claim.name, uid=claim.uid)


async def _wait_for_departure(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
