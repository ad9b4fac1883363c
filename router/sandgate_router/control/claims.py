"""The endpoints of claims: HTTP in front of a `Registry`."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from sandgate_router.capability import Tokens
from sandgate_router.control.answers import build_claim, build_claim_with_token
from sandgate_router.control.audit import audit_change, audit_claim
from sandgate_router.control.bodies import quoted, read_json, read_optional_json
from sandgate_router.control.idempotency import KeyedClaims, parse_key
from sandgate_router.control.new_claim import parse_new_claim, parse_renewal
from sandgate_router.control.paging import parse_cursor, parse_limit, take_page
from sandgate_router.control.rights import Rights
from sandgate_router.control.selectors import parse_selector
from sandgate_router.control.waiting import claim_while_connected
from sandgate_router.errors import ClaimNotFound, InvalidRequest
from sandgate_router.names import Label, parse_label
from sandgate_router.registry.base import Claim, Registry

_FILTERS = ("namespace", "pool", "label_selector", "limit", "cursor")


class ClaimEndpoints:
    """What `/v1/claims` does."""

    def __init__(self, registry: Registry, *, tokens: Tokens, clock: Callable[[], float]) -> None:
        self._registry = registry
        self._tokens = tokens
        self._keyed = KeyedClaims(registry, build_answer=self._build_created, clock=clock)

    async def create(self, request: Request, rights: Rights) -> Response:
        """Claim a sandbox; wait for one as long as the body says and the client stays."""
        rights.check("claim")
        key = parse_key(request.headers.getlist("idempotency-key"))
        wanted = replace(
            parse_new_claim(await read_json(request), caller=rights.caller),
            key=key,
            traceparent=request.headers.get("traceparent"),
        )
        rights.check_namespace(wanted.namespace)
        if key is None:
            claim = await claim_while_connected(self._registry, wanted, request.receive)
            content = self._build_created(claim)
        else:
            content = await self._keyed.claim(key, wanted, request.receive)
        return Response(content, status_code=201, media_type="application/json")

    async def list(self, request: Request, rights: Rights) -> Response:
        """List the live claims that may be seen, oldest first, a page of them."""
        rights.check_claims()
        filters = _parse_filters(request.query_params)
        limit = parse_limit(filters.get("limit"))
        after = parse_cursor(filters.get("cursor", ""))
        selector = parse_selector(filters.get("label_selector", ""))
        namespace, pool = filters.get("namespace"), filters.get("pool")
        if namespace is not None:
            rights.check_namespace(namespace)
        claims = (
            claim
            for claim in self._registry.claims()
            if namespace in {None, claim.namespace}
            and pool in {None, claim.pool}
            and rights.may_read(claim)
            and selector.matches(claim.labels)
        )
        page, cursor = take_page(claims, after=after, limit=limit)
        answer = {"claims": [build_claim(claim) for claim in page]}
        return JSONResponse(answer if cursor is None else answer | {"next_cursor": cursor})

    async def read(self, request: Request, rights: Rights) -> Response:
        """Show one claim."""
        rights.check_namespace(request.path_params["namespace"])
        claim = await self._find(request)
        if claim is None or not rights.may_read(claim):
            raise ClaimNotFound
        return JSONResponse(build_claim(claim))

    async def renew(self, request: Request, rights: Rights) -> Response:
        """Have a claim end later, and give it a new token."""
        rights.check_change()
        rights.check_namespace(request.path_params["namespace"])
        lease = parse_renewal(await read_optional_json(request))
        claim = await self._find(request, uid=request.query_params.get("uid"))
        if claim is None or not rights.may_change(claim):
            raise ClaimNotFound
        rights.check_renewal(claim)
        # The one whose rights were checked, and no other that took its name meanwhile.
        renewed = await self._registry.renew(claim.namespace, claim.name, lease, uid=claim.uid)
        audit_change("claim.renewed", rights, namespace=renewed.namespace, claim=renewed.name)
        content = build_claim_with_token(renewed, self._tokens.mint(renewed))
        return Response(content, media_type="application/json")

    async def release(self, request: Request, rights: Rights) -> Response:
        """End a claim; succeeds as well for one that ended, never was or is another's."""
        rights.check_change()
        rights.check_namespace(request.path_params["namespace"])
        name, uid = _parse_claim_name(request.path_params), request.query_params.get("uid")
        claim = await self._find(request, uid=uid)
        if claim is not None and rights.may_change(claim):
            await self._registry.release(claim.namespace, claim.name, uid=claim.uid)
            audit_change("claim.released", rights, namespace=claim.namespace, claim=claim.name)
        elif name is not None:
            if claim is None and rights.sees_all:  # another gateway may have made it just now
                await self._registry.release(*name, uid=uid)
            reason = "claim_not_found" if claim is None else "not_own"
            namespace, of = name
            audit_change("release.ignored", rights, namespace=namespace, claim=of, reason=reason)
        return Response(status_code=204)

    async def _find(self, request: Request, *, uid: str | None = None) -> Claim | None:
        """Return the live claim of the path; None where `uid` is that of another one."""
        name = _parse_claim_name(request.path_params)
        claim = None if name is None else await self._registry.find_claim(*name)
        return claim if claim is not None and _is_meant(claim, uid) else None

    def _build_created(self, claim: Claim) -> bytes:
        audit_claim(claim)
        return build_claim_with_token(claim, self._tokens.mint(claim))


def _is_meant(claim: Claim, uid: str | None) -> bool:
    # Nobody knows the uid of a sandbox that is gone; its claim must be released nevertheless.
    return uid in {None, claim.uid} or (claim.state == "failed" and not claim.uid)


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


def _parse_claim_name(path: Mapping[str, str]) -> tuple[Label, Label] | None:
    """Return namespace and name; None when no claim can be called so."""
    try:
        return parse_label(path["namespace"].encode()), parse_label(path["claim"].encode())
    except ValueError:
        return None
