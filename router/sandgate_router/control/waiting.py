"""A claim on behalf of a client that may leave while it waits.

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
    leaving = asyncio.create_task(_wait_for_departure(receive), name="departure")
    stays = False
    try:
        await asyncio.wait({claiming, leaving}, return_when=asyncio.FIRST_COMPLETED)
        leaving.cancel()
        await asyncio.wait({leaving})
        stays = leaving.cancelled()
    finally:
        if not stays:  # the client has left, or we are cancelled ourselves
            await _give_up(registry, claiming, leaving)
    if not stays:
        leaving.result()
        raise ClientDisconnect
    return claiming.result()


async def _wait_for_departure(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _give_up(
    registry: Registry, claiming: "asyncio.Task[Claim]", leaving: "asyncio.Task[None]"
) -> None:
    claiming.cancel()
    leaving.cancel()
    await asyncio.wait({claiming, leaving})
    if not claiming.cancelled() and claiming.exception() is None:
        claim = claiming.result()
        await registry.release(claim.namespace, claim.name)
