"""The one shape of the gateway's own answers."""

import json
from collections.abc import Iterator

import pytest

from sandgate_router import errors
from sandgate_router.errors import (
    ConnectionRefused,
    GatewayError,
    MethodNotAllowed,
    PoolExhausted,
    SandboxNotFound,
    UpstreamClosed,
)

PROXY_ERRORS = {
    "connection_limit_reached",
    "connection_refused",
    "connection_terminated",
    "connection_timeout",
    "destination_ip_prohibited",
    "destination_not_found",
    "destination_unavailable",
    "dns_error",
    "http_protocol_error",
    "http_request_denied",
    "http_request_error",
    "http_response_timeout",
    "proxy_internal_error",
    "proxy_loop_detected",
}
"""Those of RFC 9209 section 2.3 that fit what happens here."""

DETAILS_THAT_CLIENTS_KNOW = {
    "sandbox_id_required": "X-Sandbox-ID header is required.",
    "invalid_sandbox_id": "Invalid sandbox ID format.",
    "invalid_namespace": "Invalid namespace format.",
    "invalid_port": "Invalid port format.",
    "method_not_allowed": "Method Not Allowed",
    "connection_refused": "Could not connect to the backend sandbox",
    "upstream_timeout": "Timed out waiting for the backend sandbox",
}


def kinds(base: type[GatewayError] = GatewayError) -> Iterator[type[GatewayError]]:
    for kind in base.__subclasses__():
        if kind.__module__ == errors.__name__:
            yield kind
        yield from kinds(kind)


@pytest.mark.parametrize("kind", list(kinds()))
def test_every_error_has_a_status_a_code_of_its_own_and_a_known_proxy_error(
    kind: type[GatewayError],
) -> None:
    assert 400 <= kind.status < 600
    # A kind without a code of its own only refines another, at another status.
    own = [other for other in kinds() if other.code == kind.code and "code" in vars(other)]
    refines = bool(own) and issubclass(kind, own[0]) and kind.status != own[0].status
    assert own in ([], [kind]) or refines
    assert kind.code == kind.code.lower()
    assert kind.detail
    assert kind.proxy_error in PROXY_ERRORS


@pytest.mark.parametrize(("code", "detail"), DETAILS_THAT_CLIENTS_KNOW.items())
def test_a_text_that_clients_know_is_kept_to_the_letter(code: str, detail: str) -> None:
    assert next(kind.detail for kind in kinds() if kind.code == code) == detail


def test_the_body_tells_what_is_wrong_and_whether_the_sandbox_was_reached() -> None:
    assert json.loads(SandboxNotFound().body(b"POST")) == {
        "detail": "No such sandbox; claim one with POST /v1/claims.",
        "code": "sandbox_not_found",
        "reached": "no",
        "retry_safe": True,
    }


@pytest.mark.parametrize(
    ("error", "method", "safe"),
    [
        (ConnectionRefused(), b"POST", True),
        (UpstreamClosed(), b"POST", False),
        (UpstreamClosed(), b"PATCH", False),
        (UpstreamClosed(), b"BREW", False),
        (UpstreamClosed(), b"get", False),
        (UpstreamClosed(), b"GET", True),
        (UpstreamClosed(), b"DELETE", True),
        (UpstreamClosed(reached="no"), b"POST", True),
        (ConnectionRefused(reached="yes"), b"POST", False),
    ],
)
def test_a_retry_is_safe_when_nothing_was_reached_or_the_method_is_idempotent(
    error: GatewayError, method: bytes, *, safe: bool
) -> None:
    assert json.loads(error.body(method))["retry_safe"] is safe


def test_a_message_from_outside_is_escaped_in_the_body_and_never_enters_a_field() -> None:
    error = errors.InvalidRequest('pool "\r\nSet-Cookie: a=b\ud800é')
    assert error.body(b"POST").isascii()
    assert json.loads(error.body(b"POST"))["detail"] == error.message
    assert not any("cookie" in value.lower() for _, value in error.fields())


def test_the_fields_carry_the_code_for_programs_and_for_other_proxies() -> None:
    assert MethodNotAllowed(fields=[("allow", "GET")]).fields() == [
        ("content-type", "application/json"),
        ("x-sandbox-error", "method_not_allowed"),
        ("proxy-status", 'sandgate; error=http_request_error; details="method_not_allowed"'),
        ("allow", "GET"),
    ]


def test_every_503_says_when_to_come_back() -> None:
    unavailable = [kind for kind in kinds() if kind.status == 503]
    assert unavailable
    assert all(("retry-after", "1") in kind().fields() for kind in unavailable)
    assert ("retry-after", "7") in PoolExhausted(retry_after=7).fields()
    assert "retry-after" not in dict(ConnectionRefused().fields())
