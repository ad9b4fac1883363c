"""How the control API writes claims, pools and errors."""

import logging
from datetime import UTC, datetime
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from sandgate_router.errors import GatewayError, InternalError
from sandgate_router.registry.base import Claim, PoolStatus

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
        try:
            await self.app(scope, receive, send)
        except ClientDisconnect:
            pass  # nobody is left to answer
        except GatewayError as error:
            await build_error(error, scope["method"])(scope, receive, send)
        except Exception:
            # The path alone: a query may hold what must not be logged.
            log.exception(
                "control.failed", extra={"method": scope["method"], "path": scope["path"]}
            )
            await build_error(InternalError(), scope["method"])(scope, receive, send)


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
        "pool": claim.pool,
        "launch": claim.launch,
        "isolation": claim.isolation,
        "state": claim.state,
        "reason": claim.reason,
        "labels": dict(claim.labels),
        "created_at": format_time(claim.created_at),
        "expires_at": format_time(claim.expires_at),
        "timings": dict(claim.timings),
    }


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


def format_time(instant: datetime) -> str:
    """Return an instant as RFC 3339 in UTC, to the millisecond."""
    return instant.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
