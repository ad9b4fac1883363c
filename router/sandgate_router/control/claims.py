"""The endpoints of claims and pools: HTTP in front of a `Registry`."""

from collections.abc import Callable, Mapping

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from sandgate_router.control.answers import build_claim, build_pool
from sandgate_router.control.bodies import quoted, read_json
from sandgate_router.control.idempotency import KeyedClaims, parse_key
from sandgate_router.control.new_claim import parse_new_claim
from sandgate_router.control.waiting import claim_while_connected
from sandgate_router.errors import ClaimNotFound, InvalidRequest
from sandgate_router.names import Label, parse_label
from sandgate_router.registry.base import Claim, Registry

DEFAULT_LIMIT = 100
"""Claims in one list, unless the caller says otherwise."""

MAX_LIMIT = 1000
"""Claims in one list at most: 300 KiB of JSON, written in 9 ms."""

_FILTERS = ("namespace", "pool", "limit")


class ClaimEndpoints:
    """What `/v1/claims` and `/v1/pools` do."""

    def __init__(self, registry: Registry, *, clock: Callable[[], float]) -> None:
        self._registry = registry
        self._keyed = KeyedClaims(registry, build_answer=_build_created, clock=clock)

    async def create(self, request: Request) -> Response:
        """Claim a sandbox; wait for one as long as the body says and the client stays."""
        wanted = parse_new_claim(await read_json(request))
        key = parse_key(request.headers.getlist("idempotency-key"))
        if key is None:
            claim = await claim_while_connected(self._registry, wanted, request.receive)
            content = _build_created(claim)
        else:
            content = await self._keyed.claim(key, wanted, request.receive)
        return Response(content, status_code=201, media_type="application/json")

    async def list(self, request: Request) -> Response:
        """List live claims, oldest first."""
        filters = _parse_filters(request.query_params)
        limit = _parse_limit(filters.get("limit"))
        namespace, pool = filters.get("namespace"), filters.get("pool")
        claims = [
            build_claim(claim)
            for claim in self._registry.claims()
            if namespace in {None, claim.namespace} and pool in {None, claim.pool}
        ]
        return JSONResponse({"claims": claims[:limit]})

    async def read(self, request: Request) -> Response:
        """Show one claim."""
        wanted = _parse_claim_name(request.path_params)
        for claim in self._registry.claims():
            if (claim.namespace, claim.name) == wanted:
                return JSONResponse(build_claim(claim))
        raise ClaimNotFound

    async def release(self, request: Request) -> Response:
        """End a claim; succeeds as well for one that ended or never was."""
        wanted = _parse_claim_name(request.path_params)
        if wanted is not None:
            await self._registry.release(*wanted)
        return Response(status_code=204)

    async def pools(self, request: Request) -> Response:  # noqa: ARG002
        """List the pools as they stand."""
        return JSONResponse({"pools": [build_pool(pool) for pool in self._registry.pools()]})


def _build_created(claim: Claim) -> bytes:
    members = build_claim(claim) | {"token": None, "token_expires_at": None}
    return bytes(JSONResponse(members).body)


def _parse_filters(query: QueryParams) -> Mapping[str, str]:
    # A filter that we overlooked would show claims that the caller meant to leave out.
    filters: dict[str, str] = {}
    for name, value in query.multi_items():
        if name not in _FILTERS:
            raise InvalidRequest(f"{quoted(name)} is unknown; allowed are {', '.join(_FILTERS)}")
        if name in filters:
            raise InvalidRequest(f"{name} may be given once")
        filters[name] = value
    return filters


def _parse_limit(text: str | None) -> int:
    if text is None:
        return DEFAULT_LIMIT
    plain = text.isascii() and text.isdigit() and len(text) <= len(str(MAX_LIMIT))
    if not plain or not 1 <= int(text) <= MAX_LIMIT:
        raise InvalidRequest(f"limit {quoted(text)} is not a number from 1 to {MAX_LIMIT}")
    return int(text)


def _parse_claim_name(path: Mapping[str, str]) -> tuple[Label, Label] | None:
    """Return namespace and name; None when no claim can be called so."""
    try:
        return parse_label(path["namespace"].encode()), parse_label(path["claim"].encode())
    except ValueError:
        return None
