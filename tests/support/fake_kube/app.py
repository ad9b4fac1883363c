"""The API server's HTTP: which request does what to the store (an ASGI app)."""

import asyncio
import json
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send
from support.fake_kube.discovery import describe
from support.fake_kube.errors import ApiError, bad_request
from support.fake_kube.faults import Call, Faults
from support.fake_kube.kinds import EVERY, REVIEWS, SANDBOX_VERSIONS, Kind
from support.fake_kube.patches import apply_patch
from support.fake_kube.rbac import Rbac
from support.fake_kube.reviews import review
from support.fake_kube.selectors import parse_selectors
from support.fake_kube.store import Obj, Store
from support.fake_kube.watching import Watch

_VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


@dataclass(slots=True)
class _Path:
    kind: Kind
    version: str
    namespace: str
    name: str
    subresource: str


class App:
    """One API server."""

    def __init__(self, store: Store, faults: Faults, rbac: Rbac) -> None:
        self.store = store
        self.faults = faults
        self.rbac = rbac
        self.calls: list[Call] = []
        """Every request that was made of resources."""
        self.watches: set[Watch] = set()
        self.served_versions: tuple[str, ...] = SANDBOX_VERSIONS
        """Of the sandboxes' groups; older clusters have `v1alpha1` alone."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one exchange."""
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        try:
            response = await self._answer(request)
        except ApiError as error:
            fields = {} if error.retry_after is None else {"retry-after": str(error.retry_after)}
            response = JSONResponse(error.status, error.code, headers=fields)
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        if self.faults.latency:
            await asyncio.sleep(self.faults.latency)
        if (described := describe(request.url.path, self.served_versions)) is not None:
            return JSONResponse(described)
        path = self._parse_path(request.url.path)
        call = _build_call(request, path)
        self.calls.append(call)
        if (more := self.faults.latency_of(call)) > 0:
            await asyncio.sleep(more)
        self.rbac.admit(request.headers.get("authorization", ""), call)
        self.faults.check(call)
        response = await self._serve(request, path, call)
        self.faults.check(call, after=True)
        return response

    async def _serve(self, request: Request, path: _Path, call: Call) -> Response:
        if call.verb == "watch":
            return self._watch(request, path)
        if call.verb == "list":
            await asyncio.sleep(self.faults.list_latency)
            return self._list(request, path)
        body = await _read_body(request)
        if path.kind in REVIEWS:
            return JSONResponse(review(path.kind, body, self.rbac), 201)
        return self._change(request, path, call, body)

    def _change(self, request: Request, path: _Path, call: Call, body: Any) -> Response:
        kind, namespace, name, status = (
            path.kind,
            path.namespace,
            path.name,
            path.subresource == "status",
        )
        if call.verb == "get":
            return self._one(path, self.store.get(kind, namespace, name))
        if call.verb == "create":
            return self._one(path, self.store.create(kind, namespace, body), 201)
        if call.verb == "update":
            return self._one(path, self.store.replace(kind, namespace, name, body, status=status))
        if call.verb == "patch":
            before = self.store.get(kind, namespace, name)
            content_type = request.headers.get("content-type", "").partition(";")[0]
            wanted = apply_patch(content_type, before, body)
            return self._one(path, self.store.replace(kind, namespace, name, wanted, status=status))
        removed = self.store.delete(kind, namespace, name, body)
        if removed["metadata"].get("finalizers"):
            return self._one(path, removed)
        details = {"name": name, "kind": kind.plural, "uid": removed["metadata"]["uid"]}
        return JSONResponse(
            {
                "kind": "Status",
                "apiVersion": "v1",
                "metadata": {},
                "status": "Success",
                "details": details,
            }
        )

    def _one(self, path: _Path, item: Obj, code: int = 200) -> Response:
        return JSONResponse(item | {"apiVersion": path.kind.api_version(path.version)}, code)

    def _list(self, request: Request, path: _Path) -> Response:
        query = request.query_params
        matches = parse_selectors(query.get("labelSelector", ""), query.get("fieldSelector", ""))
        items = [i for i in self.store.items(path.kind, path.namespace) if matches(i)]
        version, offset = self.store.version, 0
        if token := query.get("continue"):
            version, offset = (int(part) for part in token.split(":"))
            self.store.since(path.kind, version)  # an old token has expired as well
        limit = int(query.get("limit") or 0) or len(items)
        metadata: dict[str, Any] = {"resourceVersion": str(version)}
        page = items[offset : offset + limit]
        if offset + limit < len(items):
            metadata["continue"] = f"{version}:{offset + limit}"
            metadata["remainingItemCount"] = len(items) - offset - limit
        return JSONResponse(
            {
                "apiVersion": path.kind.api_version(path.version),
                "kind": f"{path.kind.kind}List",
                "metadata": metadata,
                "items": [
                    item | {"apiVersion": path.kind.api_version(path.version)} for item in page
                ],
            }
        )

    def _watch(self, request: Request, path: _Path) -> Response:
        query = request.query_params
        fields = query.get("fieldSelector", "")
        if path.name:
            fields = f"metadata.name={path.name}"
        watch = Watch(
            self.store,
            self.faults,
            path.kind,
            version=path.version,
            namespace=path.namespace,
            matches=parse_selectors(query.get("labelSelector", ""), fields),
            from_version=query.get("resourceVersion", ""),
            initial=_is_true(query.get("sendInitialEvents")),
            bookmarks=_is_true(query.get("allowWatchBookmarks")),
            seconds=float(query.get("timeoutSeconds") or 1800),
        )

        async def lines() -> Any:
            self.watches.add(watch)
            try:
                async for line in watch.lines():
                    yield line
            finally:
                self.watches.discard(watch)

        return StreamingResponse(lines(), media_type="application/json")

    def _parse_path(self, path: str) -> _Path:
        parts = path.strip("/").split("/")
        group, parts = ("", parts[1:]) if parts[0] == "api" else (parts[1], parts[2:])
        version, *rest = parts or [""]
        namespace = ""
        if len(rest) > 2 and rest[0] == "namespaces":
            namespace, rest = rest[1], rest[2:]
        plural, name, subresource, *more = [*rest, "", "", ""]
        for kind in EVERY:
            if (kind.group, kind.plural) == (group, plural) and version in self._versions(kind):
                known = subresource == "" or (subresource == "status" and kind.status)
                if known and not any(more):
                    return _Path(kind, version, namespace, name, subresource)
        raise ApiError(404, "NotFound", "the server could not find the requested resource")

    def _versions(self, kind: Kind) -> tuple[str, ...]:
        if kind.versions == SANDBOX_VERSIONS:
            return self.served_versions
        return kind.versions


def _build_call(request: Request, path: _Path) -> Call:
    verb = _VERBS.get(request.method)
    if verb is None:
        raise ApiError(405, "MethodNotAllowed", "the server does not allow this method")
    if verb == "get" and _is_true(request.query_params.get("watch")):
        verb = "watch"
    elif verb == "get" and not path.name:
        verb = "list"
    elif verb in {"update", "patch", "delete"} and not path.name:
        raise ApiError(405, "MethodNotAllowed", "the server does not allow this method")
    resource = f"{path.kind.plural}/{path.subresource}".rstrip("/")
    return Call(verb, path.kind.group, resource, path.namespace, path.name)


async def _read_body(request: Request) -> Any:
    content = await request.body()
    if not content:
        return None
    try:
        return json.loads(content)
    except ValueError:
        raise bad_request("the body is no JSON") from None


def _is_true(text: str | None) -> bool:
    return (text or "").lower() in {"1", "true"}
