"""Every code has its class, and only the gateway's own word counts as the gateway's."""

import json
import pickle

import pytest

from sandgate import errors
from sandgate._wire.message import Reply
from sandgate._wire.refusals import parse_refusal
from sandgate.errors import SandgateError

CODES = [
    (400, "sandbox_id_required", errors.InvalidRequest),
    (400, "invalid_sandbox_id", errors.InvalidRequest),
    (400, "invalid_namespace", errors.InvalidRequest),
    (400, "invalid_port", errors.InvalidRequest),
    (400, "invalid_pod_ip", errors.InvalidRequest),
    (400, "invalid_timeout", errors.InvalidRequest),
    (400, "ambiguous_routing", errors.InvalidRequest),
    (400, "bad_request", errors.InvalidRequest),
    (401, "unauthenticated", errors.Unauthenticated),
    (403, "forbidden", errors.Forbidden),
    (403, "not_allowed_here", errors.NotAllowedHere),
    (404, "sandbox_not_found", errors.SandboxNotFound),
    (404, "claim_not_found", errors.ClaimNotFound),
    (404, "pool_not_found", errors.PoolNotFound),
    (404, "not_found", errors.NotFound),
    (405, "method_not_allowed", errors.InvalidRequest),
    (408, "request_timeout", errors.RequestTimedOut),
    (409, "claim_exists", errors.ClaimExists),
    (413, "content_too_large", errors.InvalidRequest),
    (414, "uri_too_long", errors.InvalidRequest),
    (415, "unsupported_media_type", errors.InvalidRequest),
    (417, "expectation_failed", errors.InvalidRequest),
    (421, "sandbox_replaced", errors.SandboxReplaced),
    (422, "invalid_request", errors.InvalidRequest),
    (422, "idempotency_key_reused", errors.InvalidRequest),
    (429, "too_many_requests", errors.TooManyRequests),
    (429, "quota_exceeded", errors.QuotaExceeded),
    (431, "head_too_large", errors.InvalidRequest),
    (500, "internal_error", errors.GatewayFault),
    (501, "not_implemented", errors.NotSupported),
    (505, "version_not_supported", errors.NotSupported),
    (502, "connection_refused", errors.ConnectionRefused),
    (502, "dns_error", errors.SandboxUnreachable),
    (502, "destination_prohibited", errors.SandboxUnreachable),
    (502, "upstream_closed", errors.UpstreamClosed),
    (502, "bad_upstream_response", errors.BadUpstreamResponse),
    (502, "proxy_loop", errors.SandboxUnreachable),
    (503, "sandbox_not_ready", errors.SandboxNotReady),
    (503, "pool_exhausted", errors.PoolExhausted),
    (503, "registry_unavailable", errors.Unavailable),
    (503, "connection_limit", errors.Unavailable),
    (503, "draining", errors.Unavailable),
    (504, "connection_timeout", errors.SandboxUnreachable),
    (504, "upstream_timeout", errors.UpstreamTimeout),
    (418, "a_code_of_the_future", SandgateError),
]


def _gateways(status: int, code: str, **members: object) -> Reply:
    body = json.dumps({"detail": "Why.", "code": code, **members}).encode()
    return Reply(status, [("x-sandbox-error", code), ("retry-after", "7")], body)


@pytest.mark.parametrize(("status", "code", "kind"), CODES)
def test_a_code_of_the_gateway_has_its_class_and_keeps_its_fields(
    status: int, code: str, kind: type[SandgateError]
) -> None:
    error = parse_refusal(
        _gateways(status, code, reached="unknown", retry_safe=True), method="POST"
    )
    assert type(error) is kind
    assert (error.code, error.status, error.detail) == (code, status, "Why.")
    assert (error.reached, error.retry_safe, error.retry_after) == ("unknown", True, 7.0)
    assert str(error) == "Why."


@pytest.mark.parametrize(
    "kind", [errors.UpstreamClosed, errors.UpstreamTimeout, errors.BadUpstreamResponse]
)
def test_an_answer_lost_behind_the_gateway_is_an_unknown_outcome(kind: type[SandgateError]) -> None:
    assert issubclass(kind, errors.OutcomeUnknown)


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        (b"", "The gateway answered 404 sandbox_not_found."),
        (b"<html>", "The gateway answered 404 sandbox_not_found."),
        (b"[]", "The gateway answered 404 sandbox_not_found."),
        (b'{"detail": 1, "reached": "perhaps"}', "The gateway answered 404 sandbox_not_found."),
    ],
)
def test_the_field_alone_makes_it_the_gateways_and_what_is_unsaid_counts_as_unknown(
    body: bytes, detail: str
) -> None:
    reply = Reply(404, [("x-sandbox-error", "sandbox_not_found")], body)
    error = parse_refusal(reply, method="POST")
    assert isinstance(error, errors.SandboxNotFound)
    assert (error.detail, error.reached, error.retry_safe) == (detail, "unknown", False)


def test_a_body_like_the_gateways_without_the_field_is_not_the_gateways() -> None:
    body = json.dumps({"detail": "x", "code": "sandbox_not_found", "reached": "no"}).encode()
    error = parse_refusal(Reply(404, [], body), method="GET")
    assert type(error) is errors.UnexpectedAnswer
    assert error.reached == "unknown"


@pytest.mark.parametrize(
    ("members", "kind", "code"),
    [
        (
            {"code": "INVALID_ARGUMENT", "reason": "invalid_cwd"},
            errors.InvalidRequest,
            "invalid_cwd",
        ),
        ({"code": "RESOURCE_EXHAUSTED"}, errors.TooManyRequests, "resource_exhausted"),
        (
            {"code": "FAILED_PRECONDITION", "reason": "sandbox_replaced"},
            errors.SandboxReplaced,
            "sandbox_replaced",
        ),
        (
            {"code": "CONFLICT", "reason": "outcome_unknown"},
            errors.OutcomeUnknown,
            "outcome_unknown",
        ),
        ({"code": "NOT_FOUND", "reason": "not_found"}, errors.SandboxRefused, "not_found"),
        ({}, errors.SandboxRefused, "sandbox_refused"),
    ],
)
def test_the_runtimes_own_refusal_has_its_words_and_was_reached(
    members: dict[str, str], kind: type[SandgateError], code: str
) -> None:
    body = json.dumps({"message": "No.", **members}).encode()
    error = parse_refusal(Reply(422, [], body), method="POST")
    assert type(error) is kind
    assert (error.code, error.detail, error.status) == (code, "No.", 422)
    assert (error.reached, error.retry_safe) == ("yes", False)


def test_an_answer_of_a_stranger_is_quoted_and_cut() -> None:
    error = parse_refusal(Reply(502, [], b"<h1>Bad\nGateway</h1>" * 100), method="GET")
    assert isinstance(error, errors.UnexpectedAnswer)
    assert "Bad\\nGateway" in str(error)
    assert len(str(error)) < 300
    assert error.retry_safe


@pytest.mark.parametrize("value", ["soon", "-1", "1.5", "Wed, 21 Oct 2015 07:28:00 GMT", "٣"])
def test_a_retry_after_that_is_no_whole_number_of_seconds_is_dropped(value: str) -> None:
    reply = Reply(503, [("x-sandbox-error", "draining"), ("retry-after", value)], b"")
    assert parse_refusal(reply, method="GET").retry_after is None


ALL_KINDS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, SandgateError)
]


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_an_error_survives_the_way_to_another_process(kind: type[SandgateError]) -> None:
    error = kind("what happened")
    error.status = 499
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert (str(copy), copy.code, copy.status) == ("what happened", error.code, 499)


def test_every_error_has_a_code_of_its_own_but_for_the_base() -> None:
    codes = [kind.default_code for kind in ALL_KINDS]
    assert len(set(codes)) == len(codes)
