"""Is this request meant for this sandbox, and may its sender ask at all?

A gateway says in every request which sandbox it means. Addresses and names are used again, so
what arrives here may be meant for one that is gone: it is refused before anything is read or
run. The two fields are no secret, but nothing else in the sandbox has a reason to know them.

A request that no gateway sent must not come from a web page either: a page cannot read answers
of another origin, but its request would have run by then. Browsers put `Origin` on those.

Requests at once are bounded, but for health and for what makes room: signals and removals.
"""

import re
from typing import TYPE_CHECKING

from sandgate_runtime.config import Config
from sandgate_runtime.errors import BrowserRefused, Refusal, SandboxReplaced, TooManyRequests
from sandgate_runtime.exchange import json_answer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.types import ASGIApp, Receive, Scope, Send

EXPECT_NAME = b"x-sandbox-expect-name"
EXPECT_UID = b"x-sandbox-expect-uid"

HEALTH_PATHS = frozenset({"/", "/v1/health"})

_REMOVAL, _SIGNAL = re.compile(r"/v1/processes/[^/]+"), re.compile(r"/v1/processes/[^/]+/signal")


def check_sender(
    fields: "Iterable[tuple[bytes, bytes]]", *, name: str | None, uid: str | None
) -> Refusal | None:
    """Return why a request with these fields is refused, or None.

    A field that names what the runtime knows of itself must be right, and sent once. Where the
    runtime knows both its name and its UID, somebody who must name both started it, and none may
    be missing; where it knows one (a pod knows its name), probes and direct clients send none.
    """
    required = name is not None and uid is not None
    sent: dict[bytes, list[bytes]] = {EXPECT_NAME: [], EXPECT_UID: [], b"origin": []}
    for field, value in fields:
        if field in sent:
            sent[field].append(value)
    for field, known in ((EXPECT_NAME, name), (EXPECT_UID, uid)):
        if known is None or not (required or sent[field]):
            continue
        if sent[field] != [known.encode()]:
            return SandboxReplaced("this is not the sandbox that the request is meant for")
    if sent[b"origin"] and not sent[EXPECT_NAME] and not sent[EXPECT_UID]:
        return BrowserRefused("requests from web pages are not served")
    return None


class Guard:
    """ASGI middleware around everything else."""

    def __init__(self, app: "ASGIApp", *, config: Config) -> None:
        self._app = app
        self._config = config
        self._serving = 0

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Pass the request on, or refuse it unread."""
        if scope["type"] not in {"http", "websocket"}:
            await self._app(scope, receive, send)
            return
        refusal = self._check(scope)
        if refusal is not None:
            # Starlette sends it in place of the upgrade where a WebSocket was asked for.
            await json_answer(refusal.body(), status=refusal.status)(scope, receive, send)
            return
        self._serving += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._serving -= 1

    def _check(self, scope: "Scope") -> Refusal | None:
        name, uid = self._config.sandbox_name, self._config.sandbox_uid
        refusal = check_sender(scope["headers"], name=name, uid=uid)
        if refusal is not None or _is_always_served(scope):
            return refusal
        maximum = self._config.max_requests
        if self._serving >= maximum:
            return TooManyRequests(f"{maximum} requests are served already, which is the most")
        return None


def _is_always_served(scope: "Scope") -> bool:
    # Health must answer however busy the sandbox is, else it would be taken for dead; and what
    # keeps it busy must be possible to end.
    path, method = scope["path"], scope.get("method")
    return (
        path in HEALTH_PATHS
        or (method == "DELETE" and _REMOVAL.fullmatch(path) is not None)
        or (method == "POST" and _SIGNAL.fullmatch(path) is not None)
    )
