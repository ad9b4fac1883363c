"""Every refusal of the gateway: its status, its code, and whether the sandbox was reached.

Where a failure happened is part of the error, because whether a caller may retry depends on
it. The answer's shape is the same for the relay and for the control API.
"""

import json
from collections.abc import Sequence
from typing import ClassVar, Literal

Reached = Literal["no", "unknown", "yes"]

IDEMPOTENT_METHODS = frozenset({b"GET", b"HEAD", b"OPTIONS", b"PUT", b"DELETE", b"TRACE"})
"""Methods whose repetition changes nothing more (RFC 9110 section 9.2.2)."""

DEFAULT_RETRY_SECONDS = 1
"""Retry-After of every 429 and 503 whose raiser knows no better."""

_TRY_LATER = frozenset({429, 503})


class GatewayError(Exception):
    """An answer that the gateway gives by itself, in place of a sandbox's."""

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal_error"
    detail: ClassVar[str] = "An internal error occurred in the gateway."
    proxy_error: ClassVar[str] = "proxy_internal_error"
    """The error type of RFC 9209 section 2.3 that comes nearest."""
    reached: Reached = "no"

    def __init__(
        self,
        detail: str | None = None,
        *,
        reached: Reached | None = None,
        retry_after: int | None = None,
        fields: Sequence[tuple[str, str]] = (),
    ) -> None:
        self.message = self.detail if detail is None else detail
        super().__init__(self.message)
        if reached is not None:
            self.reached = reached
        if retry_after is None and self.status in _TRY_LATER:
            retry_after = DEFAULT_RETRY_SECONDS
        self.retry_after = retry_after
        """Whole seconds after which another try makes sense; None sends no Retry-After."""
        self.extra_fields = tuple(fields)

    def body(self, method: bytes) -> bytes:
        """Return the JSON body of the answer to a request with this method."""
        return json.dumps(
            {
                "detail": self.message,
                "code": self.code,
                "reached": self.reached,
                "retry_safe": self.reached == "no" or method in IDEMPOTENT_METHODS,
            },
            ensure_ascii=True,
        ).encode()

    def fields(self) -> list[tuple[str, str]]:
        """Return the fields of the answer, but for Content-Length, Date and Connection."""
        fields = [
            ("content-type", "application/json"),
            ("x-sandbox-error", self.code),
            ("proxy-status", f'sandgate; error={self.proxy_error}; details="{self.code}"'),
        ]
        if self.retry_after is not None:
            fields.append(("retry-after", str(self.retry_after)))
        fields.extend(self.extra_fields)
        return fields


class BadRequest(GatewayError):
    """The request breaks the protocol; its connection is closed, since framing is in doubt."""

    status, code, detail = 400, "bad_request", "The request is malformed."
    proxy_error = "http_request_error"


class UpgradeRequired(BadRequest):
    """A WebSocket handshake in another version than 13 (RFC 6455 section 4.4)."""

    status, detail = 426, "Only WebSocket version 13 is served."

    def __init__(self) -> None:
        super().__init__(
            fields=[("sec-websocket-version", "13"), ("upgrade", "websocket")],
        )


class SandboxIdRequired(BadRequest):
    """No sandbox is named, and the path is none of the gateway's own."""

    code, detail = "sandbox_id_required", "X-Sandbox-ID header is required."


class InvalidSandboxId(BadRequest):
    """X-Sandbox-ID is no RFC 1123 label."""

    code, detail = "invalid_sandbox_id", "Invalid sandbox ID format."


class InvalidNamespace(BadRequest):
    """X-Sandbox-Namespace is no RFC 1123 label."""

    code, detail = "invalid_namespace", "Invalid namespace format."


class InvalidPort(BadRequest):
    """X-Sandbox-Port is no port."""

    code, detail = "invalid_port", "Invalid port format."


class InvalidPodIp(BadRequest):
    """X-Sandbox-Pod-IP is no address that may be dialled."""

    code, detail = "invalid_pod_ip", "Invalid target IP address."


class InvalidTimeout(BadRequest):
    """X-Sandbox-Timeout is no finite number of seconds above 0."""

    code = "invalid_timeout"
    detail = "X-Sandbox-Timeout must be a finite number of seconds above 0."


class AmbiguousRouting(BadRequest):
    """A routing field is repeated, or spelled so that another parser may read it otherwise."""

    code, detail = "ambiguous_routing", "Each routing header may be sent once, spelled with '-'."


class Unauthenticated(GatewayError):
    """No valid credential came with the request."""

    status, code, detail = 401, "unauthenticated", "Missing or invalid credentials."
    proxy_error = "http_request_denied"


class Forbidden(GatewayError):
    """The credential is valid, but not for this."""

    status, code, detail = 403, "forbidden", "Forbidden."
    proxy_error = "http_request_denied"


class NotAllowedHere(GatewayError):
    """This gateway does not serve this to anyone; the detail says why."""

    status, code, detail = 403, "not_allowed_here", "This gateway does not allow the request."
    proxy_error = "http_request_denied"


class NotFound(GatewayError):
    """The gateway has no such path."""

    status, code, detail = 404, "not_found", "Not Found"
    proxy_error = "http_request_error"


class SandboxNotFound(NotFound):
    """No live sandbox has this namespace and id."""

    code = "sandbox_not_found"
    detail = "No such sandbox; claim one with POST /v1/claims."
    proxy_error = "destination_not_found"


class ClaimNotFound(NotFound):
    """No live claim has this namespace and name."""

    code, detail = "claim_not_found", "No such claim."


class PoolNotFound(NotFound):
    """No pool has this namespace and name."""

    code, detail = "pool_not_found", "No such pool; GET /v1/pools lists them."


class MethodNotAllowed(GatewayError):
    """The path or the relay does not serve this method."""

    status, code, detail = 405, "method_not_allowed", "Method Not Allowed"
    proxy_error = "http_request_error"


class RequestTimeout(GatewayError):
    """The client stopped in the middle of its request."""

    status, code, detail = 408, "request_timeout", "Timed out waiting for the request."
    proxy_error = "http_request_error"


class ClaimExists(GatewayError):
    """A live claim has the wanted name."""

    status, code, detail = 409, "claim_exists", "A live claim has that name."
    proxy_error = "http_request_error"


class ContentTooLarge(GatewayError):
    """The request's content is above the limit."""

    status, code, detail = 413, "content_too_large", "The request content is too large."
    proxy_error = "http_request_error"


class UriTooLong(GatewayError):
    """The request line is above the limit."""

    status, code, detail = 414, "uri_too_long", "The request line is longer than 8192 bytes."
    proxy_error = "http_request_error"


class UnsupportedMediaType(GatewayError):
    """The body of a control request is not JSON."""

    status, code = 415, "unsupported_media_type"
    detail = "Send the body as Content-Type: application/json."
    proxy_error = "http_request_error"


class ExpectationFailed(GatewayError):
    """The request expects something other than 100-continue (RFC 9110 section 10.1.1)."""

    status, code, detail = 417, "expectation_failed", "Only Expect: 100-continue is supported."
    proxy_error = "http_request_error"


class SandboxReplaced(GatewayError):
    """The name now belongs to another generation of the sandbox."""

    status, code = 421, "sandbox_replaced"
    detail = "The sandbox with this name is not the one with the UID that was asked for."
    proxy_error = "destination_not_found"


class InvalidRequest(GatewayError):
    """Well-formed JSON whose content is wrong; the detail says where."""

    status, code, detail = 422, "invalid_request", "The request content is invalid."
    proxy_error = "http_request_error"


class IdempotencyKeyReused(GatewayError):
    """The Idempotency-Key came before with another body."""

    status, code = 422, "idempotency_key_reused"
    detail = "This Idempotency-Key was used with another request body; use a new key."
    proxy_error = "http_request_error"


class TooManyRequests(GatewayError):
    """A limit on requests under way is reached."""

    status, code, detail = 429, "too_many_requests", "Too many requests are under way."
    proxy_error = "connection_limit_reached"


class QuotaExceeded(GatewayError):
    """The namespace holds as many claims as it may."""

    status, code = 429, "quota_exceeded"
    detail = "The namespace holds as many claims as it may; release one and try again."


class HeadTooLarge(GatewayError):
    """The request's fields are above the limits (RFC 6585 section 5)."""

    status, code = 431, "head_too_large"
    detail = "The request header fields are larger than 32768 bytes or more than 100."
    proxy_error = "http_request_error"


class InternalError(GatewayError):
    """A fault of the gateway itself."""

    reached: Reached = "unknown"


class NotImplementedHere(GatewayError):
    """The protocol has it, this gateway or its registry does not."""

    status, code, detail = 501, "not_implemented", "This is not implemented."
    proxy_error = "http_request_error"


class VersionNotSupported(GatewayError):
    """The request speaks neither HTTP/1.1 nor HTTP/1.0."""

    status, code, detail = 505, "version_not_supported", "Only HTTP/1.1 and HTTP/1.0 are served."
    proxy_error = "http_request_error"


class ConnectionRefused(GatewayError):
    """The sandbox could not be dialled; no byte of the request has left."""

    status, code = 502, "connection_refused"
    detail = "Could not connect to the backend sandbox"
    proxy_error = "connection_refused"


class DnsError(GatewayError):
    """The sandbox's name could not be resolved."""

    status, code = 502, "dns_error"
    detail = "The sandbox's name could not be resolved"
    proxy_error = "dns_error"


class DestinationProhibited(GatewayError):
    """The sandbox's address lies outside the networks that may be dialled."""

    status, code = 502, "destination_prohibited"
    detail = "The sandbox's address is outside the networks that the gateway may dial."
    proxy_error = "destination_ip_prohibited"


class UpstreamClosed(GatewayError):
    """The sandbox closed the connection before it answered."""

    status, code = 502, "upstream_closed"
    detail = "The backend sandbox closed the connection before it answered."
    proxy_error = "connection_terminated"
    reached: Reached = "unknown"


class BadUpstreamResponse(GatewayError):
    """What the sandbox sent is no HTTP response that may be passed on."""

    status, code = 502, "bad_upstream_response"
    detail = "The backend sandbox sent a malformed response."
    proxy_error = "http_protocol_error"
    reached: Reached = "yes"


class ProxyLoop(GatewayError):
    """The request came through this gateway before (RFC 9110 section 7.6.3)."""

    status, code, detail = 502, "proxy_loop", "The request passed this gateway too often."
    proxy_error = "proxy_loop_detected"


class SandboxNotReady(GatewayError):
    """The sandbox exists and does not serve yet."""

    status, code, detail = 503, "sandbox_not_ready", "The sandbox is not ready yet."
    proxy_error = "destination_unavailable"


class PoolExhausted(GatewayError):
    """No member of the pool became ready in time."""

    status, code = 503, "pool_exhausted"
    detail = "No sandbox of the pool became ready in time; release one or raise the pool's max."
    proxy_error = "destination_unavailable"


class RegistryUnavailable(GatewayError):
    """What knows the sandboxes does not answer."""

    status, code, detail = 503, "registry_unavailable", "The sandbox registry does not answer."
    proxy_error = "destination_unavailable"


class ConnectionLimit(GatewayError):
    """The gateway holds as many connections as it may."""

    status, code, detail = 503, "connection_limit", "The gateway is at its connection limit."
    proxy_error = "connection_limit_reached"


class Draining(GatewayError):
    """The gateway is about to stop."""

    status, code, detail = 503, "draining", "The gateway is shutting down; try again."
    proxy_error = "destination_unavailable"


class ConnectionTimeout(GatewayError):
    """The sandbox did not accept a connection in time; no byte of the request has left."""

    status, code = 504, "connection_timeout"
    detail = "Timed out connecting to the backend sandbox"
    proxy_error = "connection_timeout"


class UpstreamTimeout(GatewayError):
    """The sandbox did not answer in time."""

    status, code = 504, "upstream_timeout"
    detail = "Timed out waiting for the backend sandbox"
    proxy_error = "http_response_timeout"
    reached: Reached = "unknown"
