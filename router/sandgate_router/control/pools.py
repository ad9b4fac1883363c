"""The endpoints of pools: HTTP in front of a `Registry`."""

from collections.abc import Mapping

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from sandgate_router.control.answers import build_pool
from sandgate_router.control.audit import audit_resize
from sandgate_router.control.bodies import parse_struct, read_json
from sandgate_router.control.rights import Rights
from sandgate_router.errors import InvalidRequest, PoolNotFound
from sandgate_router.names import Label, parse_label
from sandgate_router.registry.base import Registry

MAX_MEMBERS = 100_000
"""Largest size that may be asked for: above it is a slip of the finger."""


class NewSize(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """The members of the body of a PATCH; what is missing stays as it is."""

    warm: int | None = None
    max: int | None = None


class PoolEndpoints:
    """What `/v1/pools` does."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    async def list(self, request: Request, rights: Rights) -> Response:  # noqa: ARG002
        """List the pools as they stand."""
        rights.check("read")
        pools = [pool for pool in self._registry.pools() if rights.covers(pool.namespace)]
        return JSONResponse({"pools": [build_pool(pool) for pool in pools]})

    async def read(self, request: Request, rights: Rights) -> Response:
        """Show one pool."""
        namespace, name = request.path_params["namespace"], request.path_params["pool"]
        rights.check("read", namespace)
        for pool in self._registry.pools():
            if (pool.namespace, pool.name) == (namespace, name):
                return JSONResponse(build_pool(pool))
        raise PoolNotFound

    async def resize(self, request: Request, rights: Rights) -> Response:
        """Set how many members stand ready, and how many there may be."""
        rights.check("admin", request.path_params["namespace"])
        size = parse_new_size(await read_json(request))
        namespace, name = _parse_names(request.path_params)
        status = await self._registry.resize(namespace, name, warm=size.warm, max_members=size.max)
        audit_resize(rights, namespace=namespace, pool=name)
        return JSONResponse(build_pool(status))


def parse_new_size(body: object) -> NewSize:
    """Return what the caller wants; raise InvalidRequest."""
    size = parse_struct(body, NewSize)
    if size.warm is None and size.max is None:
        raise InvalidRequest("warm and max are missing; give at least one")
    if size.warm is not None and not 0 <= size.warm <= MAX_MEMBERS:
        raise InvalidRequest(f"warm {size.warm!r} is not a number from 0 to {MAX_MEMBERS}")
    if size.max is not None and not 1 <= size.max <= MAX_MEMBERS:
        raise InvalidRequest(f"max {size.max!r} is not a number from 1 to {MAX_MEMBERS}")
    return size


def _parse_names(path: Mapping[str, str]) -> tuple[Label, Label]:
    try:
        return parse_label(path["namespace"].encode()), parse_label(path["pool"].encode())
    except ValueError:
        raise PoolNotFound from None
