"""The gateway's error codes, and the type that each becomes."""

from sandgate import errors
from sandgate.errors import SandgateError


def class_for_code(code: str) -> type[SandgateError]:
    """Return the class of a gateway's error code; the base class for one it does not know."""
    return _CLASSES.get(code, SandgateError)


_CLASSES: dict[str, type[SandgateError]] = {
    **dict.fromkeys(
        (
            "sandbox_id_required",
            "invalid_sandbox_id",
            "invalid_namespace",
            "invalid_port",
            "invalid_pod_ip",
            "invalid_timeout",
            "ambiguous_routing",
            "bad_request",
            "method_not_allowed",
            "content_too_large",
            "uri_too_long",
            "unsupported_media_type",
            "expectation_failed",
            "head_too_large",
            "invalid_request",
            "idempotency_key_reused",
        ),
        errors.InvalidRequest,
    ),
    "unauthenticated": errors.Unauthenticated,
    "forbidden": errors.Forbidden,
    "not_allowed_here": errors.NotAllowedHere,
    "not_found": errors.NotFound,
    "sandbox_not_found": errors.SandboxNotFound,
    "sandbox_replaced": errors.SandboxReplaced,
    "claim_not_found": errors.ClaimNotFound,
    "pool_not_found": errors.PoolNotFound,
    "request_timeout": errors.RequestTimedOut,
    "claim_exists": errors.ClaimExists,
    "too_many_requests": errors.TooManyRequests,
    "quota_exceeded": errors.QuotaExceeded,
    "internal_error": errors.GatewayFault,
    "not_implemented": errors.NotSupported,
    "version_not_supported": errors.NotSupported,
    "connection_refused": errors.ConnectionRefused,
    "dns_error": errors.SandboxUnreachable,
    "destination_prohibited": errors.SandboxUnreachable,
    "proxy_loop": errors.SandboxUnreachable,
    "connection_timeout": errors.SandboxUnreachable,
    "upstream_closed": errors.UpstreamClosed,
    "upstream_timeout": errors.UpstreamTimeout,
    "bad_upstream_response": errors.BadUpstreamResponse,
    "sandbox_not_ready": errors.SandboxNotReady,
    "pool_exhausted": errors.PoolExhausted,
    "registry_unavailable": errors.Unavailable,
    "connection_limit": errors.Unavailable,
    "draining": errors.Unavailable,
}
