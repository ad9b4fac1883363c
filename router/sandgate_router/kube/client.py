"""Requests to the Kubernetes API, on httpx.

Objects come back as the bytes they arrived in: what is read of them is the caller's business,
and most of a Sandbox is nobody's here. No redirects, no environment, no cookies.
"""

import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx
import msgspec

from sandgate_router.kube.access import Access
from sandgate_router.kube.errors import Denied, Unreachable, build_refused
from sandgate_router.kube.resources import Resource

REQUEST_SECONDS = 10.0
"""Longest wait for an answer. An API server that needs longer is in trouble, and so would be
whoever waits for us."""

CONNECT_SECONDS = 3.0

MAX_LINE_BYTES = 8 * 1024 * 1024
"""Longest event of a watch. etcd takes objects of 1.5 MiB."""

_USER_AGENT = "sandgate-router"

Decoded = TypeVar("Decoded")


class _Details(msgspec.Struct):
    kind: str = ""


class _Status(msgspec.Struct):
    message: str = ""
    reason: str = ""
    code: int = 0
    details: _Details | None = None


class _ListMetadata(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    next: str = msgspec.field(name="continue", default="")


class _List(msgspec.Struct):
    metadata: _ListMetadata
    items: list[msgspec.Raw] | None = None


class _Group(msgspec.Struct):
    versions: list[Mapping[str, str]]


class WatchEvent(msgspec.Struct):
    """One line of a watch."""

    type: str
    object: msgspec.Raw


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a list, all parts being of one version."""

    version: str
    items: list[bytes]
    next: str
    """What asks for the next part; empty behind the last."""


_EVENTS = msgspec.json.Decoder(WatchEvent)
_LISTS = msgspec.json.Decoder(_List)
_STATUSES = msgspec.json.Decoder(_Status)


class KubeClient:
    """Speaks to one API server."""

    def __init__(self, access: Access) -> None:
        """Connect to nothing yet."""
        self._access = access
        self._served: dict[str, str] = {}
        self._http = httpx.AsyncClient(
            base_url=access.server,
            verify=access.verify if access.verify is not None else True,
            trust_env=False,
            follow_redirects=False,
            headers={"user-agent": _USER_AGENT, "accept": "application/json"},
            timeout=httpx.Timeout(REQUEST_SECONDS, connect=CONNECT_SECONDS),
            limits=httpx.Limits(max_connections=256, max_keepalive_connections=32),
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    def version(self, resource: Resource) -> str:
        """Return the version of a kind that is spoken."""
        return self._served.get(resource.group, resource.versions[0])

    async def discover(self, resource: Resource) -> bool:
        """Ask which version the cluster serves; tell whether another one is spoken now."""
        content = await self._call("GET", f"/apis/{resource.group}", what="discovery")
        served = {row.get("version") for row in msgspec.json.decode(content, type=_Group).versions}
        before = self.version(resource)
        wanted = next((v for v in resource.versions if v in served), before)
        self._served[resource.group] = wanted
        return wanted != before

    async def get(self, resource: Resource, namespace: str, name: str) -> bytes:
        """Return one object; raise NotFound."""
        path = resource.path(self.version(resource), namespace, name)
        return await self._call("GET", path, what=_words("get", resource, namespace))

    async def list(
        self, resource: Resource, namespace: str, *, limit: int, after: str = ""
    ) -> Page:
        """Return a part of a list; raise Gone when what `after` continues has expired."""
        query: dict[str, Any] = {"limit": limit}
        if after:
            query["continue"] = after
        content = await self._call(
            "GET",
            resource.path(self.version(resource), namespace),
            query=query,
            what=_words("list", resource, namespace),
        )
        page = _decode(_LISTS, content)
        items = [bytes(item) for item in page.items or ()]
        return Page(page.metadata.resource_version, items, page.metadata.next)

    async def create(
        self, resource: Resource, namespace: str, body: object, *, seconds: float = REQUEST_SECONDS
    ) -> bytes:
        """Create an object and return it; raise Conflict when its name is taken."""
        return await self._call(
            "POST",
            resource.path(self.version(resource), namespace),
            body=body,
            seconds=seconds,
            what=_words("create", resource, namespace),
        )

    async def patch(self, resource: Resource, namespace: str, name: str, body: object) -> bytes:
        """Merge a patch into an object (RFC 7396) and return it.

        With `metadata.resourceVersion` in it, raise Conflict when the object has changed.
        """
        return await self._call(
            "PATCH",
            resource.path(self.version(resource), namespace, name),
            body=body,
            content_type="application/merge-patch+json",
            what=_words("patch", resource, namespace),
        )

    async def delete(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        *,
        uid: str | None = None,
        version: str | None = None,
    ) -> None:
        """Delete an object; raise NotFound, or Conflict when it is another or has changed."""
        wanted = {"uid": uid, "resourceVersion": version}
        options: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Background",
        }
        if conditions := {key: value for key, value in wanted.items() if value is not None}:
            options["preconditions"] = conditions
        await self._call(
            "DELETE",
            resource.path(self.version(resource), namespace, name),
            body=options,
            what=_words("delete", resource, namespace),
        )

    @contextlib.asynccontextmanager
    async def watch(
        self,
        resource: Resource,
        namespace: str,
        *,
        version: str,
        seconds: float,
        silence: float,
    ) -> AsyncIterator[AsyncIterator[WatchEvent]]:
        """Open a watch from a version on; yield its events.

        Args:
            resource: what is watched.
            namespace: where; empty is everywhere.
            version: what is known already.
            seconds: how long the server is to keep it open.
            silence: how long nothing may come before it counts as broken.

        Raises:
            Unreachable, Refused: also while events are read.
        """
        request = self._build(
            "GET",
            resource.path(self.version(resource), namespace),
            query={
                "watch": "true",
                "allowWatchBookmarks": "true",
                "resourceVersion": version,
                "timeoutSeconds": str(int(seconds)),
            },
            timeout=httpx.Timeout(silence, connect=CONNECT_SECONDS),
            # A compressed stream is held back until the server has enough to compress.
            fields={"accept-encoding": "identity"},
        )
        what = _words("watch", resource, namespace)
        with _mapped(what):
            response = await self._http.send(request, stream=True)
        try:
            if response.status_code != 200:
                with _mapped(what):
                    await response.aread()
                self._raise(response, what)
            yield _read_events(response, what)
        finally:
            await response.aclose()

    async def _call(
        self,
        method: str,
        path: str,
        *,
        what: str,
        query: Mapping[str, Any] | None = None,
        body: object = None,
        content_type: str = "application/json",
        seconds: float = REQUEST_SECONDS,
    ) -> bytes:
        for attempt in range(2):
            request = self._build(
                method,
                path,
                query=query,
                content=None if body is None else msgspec.json.encode(body),
                fields={} if body is None else {"content-type": content_type},
                timeout=httpx.Timeout(seconds, connect=min(seconds, CONNECT_SECONDS)),
            )
            with _mapped(what):
                response = await self._http.send(request)
            if response.status_code == 401 and attempt == 0:
                # The token may have rotated a moment ago; nothing was done.
                self._access.token.doubt()
                continue
            break
        if not 200 <= response.status_code < 300:
            self._raise(response, what)
        return response.content

    def _build(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None,
        timeout: httpx.Timeout,
        fields: Mapping[str, str],
        content: bytes | None = None,
    ) -> httpx.Request:
        headers = dict(fields)
        if token := self._access.token.value():
            headers["authorization"] = f"Bearer {token}"
        return self._http.build_request(
            method, path, params=query, content=content, headers=headers, timeout=timeout
        )

    def _raise(self, response: httpx.Response, what: str) -> None:
        try:
            status = _STATUSES.decode(response.content)
        except msgspec.MsgspecError:  # something in between answered
            status = _Status(message=response.text[:200], reason=response.reason_phrase)
        after = response.headers.get("retry-after", "")
        refused = build_refused(
            response.status_code,
            status.reason or response.reason_phrase,
            status.message,
            what=what,
            retry_after=float(after) if after.isdecimal() else None,
        )
        if isinstance(refused, Denied):
            self._access.token.doubt()
        raise refused


async def _read_events(response: httpx.Response, what: str) -> AsyncIterator[WatchEvent]:
    with _mapped(what):
        held = b""
        async for part in response.aiter_raw():
            *lines, held = (held + part).split(b"\n")
            if len(held) > MAX_LINE_BYTES:
                raise Unreachable(f"{what}: an event is longer than {MAX_LINE_BYTES} bytes")
            for line in lines:
                if line:
                    yield _decode(_EVENTS, line)


def raise_event_error(event: WatchEvent, what: str) -> None:
    """Raise what an ERROR event of a watch says."""
    status = _decode(_STATUSES, event.object)
    raise build_refused(status.code or 500, status.reason, status.message, what=what)


def _decode(decoder: "msgspec.json.Decoder[Decoded]", content: bytes | msgspec.Raw) -> Decoded:
    try:
        return decoder.decode(content)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Unreachable(f"the Kubernetes API sent what is no answer of its kind: {error}") from (
            error
        )


@contextlib.contextmanager
def _mapped(what: str) -> Iterator[None]:
    try:
        yield
    except httpx.HTTPError as error:
        raise Unreachable(f"{what}: {type(error).__name__} {error}".rstrip()) from error


def _words(verb: str, resource: Resource, namespace: str) -> str:
    where = f"in namespace {namespace}" if namespace else "in all namespaces"
    return f"{verb} {resource.qualified} {where}"
