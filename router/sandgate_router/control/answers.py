"""How the control API writes claims, pools and errors."""

import json
import logging
from datetime import UTC, datetime
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sandgate_router.capability import MintedToken
from sandgate_router.errors import GatewayError, InternalError
from sandgate_router.registry.base import Claim, Event, PoolStatus

log = logging.getLogger("sandgate.control")


class AnswerErrors:
    """ASGI middleware: whatever an endpoint raises is answered in the one error shape."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one exchange."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = False

        async def send_noting(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self.app(scope, receive, send_noting)
        except ClientDisconnect:
            pass  # nobody is left to answer
        except Exception as error:
            expected = isinstance(error, GatewayError) and not started
            if not expected:
                # The path alone: a query may hold what must not be logged.
                log.exception(
                    "control.failed", extra={"method": scope["method"], "path": scope["path"]}
                )
            if not started:  # else the server breaks it off: half an answer must not end cleanly
                refusal = error if isinstance(error, GatewayError) else InternalError()
                await build_error(refusal, scope["method"])(scope, receive, send)


def build_error(error: GatewayError, method: str) -> Response:
    """Return the answer for `error`; the server leaves its body away after HEAD."""
    return Response(error.body(method.encode()), error.status, headers=dict(error.fields()))


def build_claim(claim: Claim) -> dict[str, Any]:
    """Return a claim as every answer shows it; a POST adds the token."""
    return {
        "claim": claim.name,
        "namespace": claim.namespace,
        "sandbox": claim.sandbox,
        "uid": claim.uid,
        "port": claim.port,
        "ports": None if claim.ports is None else list(claim.ports),
        "pool": claim.pool,
        "launch": claim.launch,
        "isolation": claim.isolation,
        "state": claim.state,
        "reason": claim.reason,
        "labels": dict(claim.labels),
        "created_at": format_time(claim.created_at),
        "expires_at": format_time(claim.expires_at),
        "idle_seconds": claim.idle_seconds,
        "timings": dict(claim.timings),
    }


def build_claim_with_token(claim: Claim, minted: MintedToken | None) -> bytes:
    """Return the body of an answer to POST, the only one that tells a token."""
    members = build_claim(claim) | {
        "token": None if minted is None else minted.token,
        "token_expires_at": None if minted is None else format_time(minted.expires_at),
    }
    return json.dumps(members).encode()


def build_pool(pool: PoolStatus) -> dict[str, Any]:
    """Return a pool as `GET /v1/pools` shows it."""
    return {
        "name": pool.name,
        "namespace": pool.namespace,
        "warm": pool.warm,
        "max": pool.max,
        "ready": pool.ready,
        "claimed": pool.claimed,
        "waiting": pool.waiting,
        "hit_rate": pool.hit_rate,
        "isolation": pool.isolation,
        "last_error": pool.last_error,
    }


def build_event(event: Event) -> dict[str, Any]:
    """Return what one event says."""
    return {
        "kind": event.kind,
        "at": format_time(event.at),
        "namespace": event.namespace,
        "pool": event.pool,
        "reason": event.reason,
        "claim": None if event.claim is None else build_claim(event.claim),
        "status": None if event.status is None else build_pool(event.status),
    }


def format_time(instant: datetime) -> str:
    """Return an instant as RFC 3339 in UTC, to the millisecond."""
    return instant.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
