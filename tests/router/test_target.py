"""What the routing fields of a request say."""

import pytest

from sandgate_router import target
from sandgate_router.errors import (
    AmbiguousRouting,
    BadRequest,
    InvalidNamespace,
    InvalidPort,
    InvalidSandboxId,
    InvalidTimeout,
    SandboxIdRequired,
)
from sandgate_router.target import (
    ID,
    MAX_POD_IP_BYTES,
    NAMESPACE,
    POD_IP,
    PORT,
    ROUTING_FIELDS,
    TIMEOUT,
    UID,
    Routing,
    is_for_a_sandbox,
    parse_routing,
    parse_timeout,
)


def parse(values: dict[bytes, bytes]) -> Routing:
    return parse_routing(values, set(), set())


@pytest.mark.parametrize("name", sorted(ROUTING_FIELDS))
def test_a_request_with_any_routing_field_is_for_a_sandbox_even_when_it_is_empty(
    name: bytes,
) -> None:
    assert is_for_a_sandbox({name: b""}, set())
    assert is_for_a_sandbox({}, {name})


@pytest.mark.parametrize("name", [b"host", TIMEOUT, b"x-sandbox-token", b"x-sandbox-idx"])
def test_a_request_without_a_routing_field_is_not_for_a_sandbox(name: bytes) -> None:
    assert not is_for_a_sandbox({name: b"1"}, set())


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({ID: b"sb-1"}, ("sb-1", "default", 8888)),
        ({ID: b"sb-1", NAMESPACE: b"", PORT: b""}, ("sb-1", "default", 8888)),
        ({ID: b"sb-1", NAMESPACE: b"team", PORT: b"3000"}, ("sb-1", "team", 3000)),
    ],
)
def test_a_target_takes_its_defaults_for_what_is_missing_or_empty(
    values: dict[bytes, bytes], expected: tuple[str, str, int]
) -> None:
    target = parse(values).target
    assert (target.sandbox, target.namespace, target.port) == expected


def test_a_uid_and_an_address_are_kept() -> None:
    routing = parse({ID: b"sb-1", UID: b"5f0c-11", POD_IP: b"10.0.0.7"})
    assert (routing.uid, routing.pod_ip) == ("5f0c-11", "10.0.0.7")


def test_an_empty_uid_and_an_empty_address_count_as_absent() -> None:
    routing = parse({ID: b"sb-1", UID: b"", POD_IP: b""})
    assert (routing.uid, routing.pod_ip) == (None, None)


@pytest.mark.parametrize(
    ("values", "refusal"),
    [
        ({}, SandboxIdRequired),
        ({ID: b""}, SandboxIdRequired),
        ({NAMESPACE: b"team"}, SandboxIdRequired),
        ({ID: b"SB-1"}, InvalidSandboxId),
        ({ID: b"sb-1.team"}, InvalidSandboxId),
        ({ID: b"10.0.0.7"}, InvalidSandboxId),
        ({ID: b"sb-1", NAMESPACE: b"a/b"}, InvalidNamespace),
        ({ID: b"sb-1", PORT: b"0"}, InvalidPort),
        ({ID: b"sb-1", PORT: b"80 "}, InvalidPort),
        ({ID: b"sb-1", UID: b"a b"}, AmbiguousRouting),
        ({ID: b"sb-1", UID: b"a" * 254}, AmbiguousRouting),
    ],
)
def test_a_wrong_field_is_refused_as_what_it_is(
    values: dict[bytes, bytes], refusal: type[BadRequest]
) -> None:
    with pytest.raises(refusal):
        parse(values)


@pytest.mark.parametrize("text", ["10.0.0", "localhost", "\xff"])
def test_an_address_is_kept_as_it_came_since_a_setting_decides_whether_it_counts(text: str) -> None:
    assert parse({ID: b"sb-1", POD_IP: text.encode("latin-1")}).pod_ip == text


def test_a_long_address_is_not_remembered() -> None:
    before = target._parse_routing.cache_info().currsize
    for number in range(10):
        text = f"{number}" * (MAX_POD_IP_BYTES + 1)
        assert parse({ID: b"sb-long", POD_IP: text.encode()}).pod_ip == text
    assert target._parse_routing.cache_info().currsize - before <= 1


def test_the_first_wrong_field_wins_in_the_order_that_clients_know() -> None:
    wrong = {ID: b"A", NAMESPACE: b"B", PORT: b"C"}
    order = []
    while wrong:
        with pytest.raises(BadRequest) as caught:
            parse({ID: b"sb-1"} | wrong)
        order.append(caught.value.code)
        del wrong[next(iter(wrong))]
    assert order == ["invalid_sandbox_id", "invalid_namespace", "invalid_port"]


@pytest.mark.parametrize("name", [*sorted(ROUTING_FIELDS), TIMEOUT, b"x-sandbox-token"])
def test_a_repeated_or_misspelt_field_that_steers_is_ambiguous(name: bytes) -> None:
    with pytest.raises(AmbiguousRouting):
        parse_routing({ID: b"sb-1"}, {name}, set())
    with pytest.raises(AmbiguousRouting):
        parse_routing({ID: b"sb-1"}, set(), {name})


def test_a_repeated_field_that_does_not_steer_is_no_matter() -> None:
    assert parse_routing({ID: b"sb-1"}, {b"accept"}, {b"x-other"}).target.sandbox == "sb-1"


@pytest.mark.parametrize(
    ("value", "seconds"), [(b"60", 60.0), (b"0.5", 0.5), (b".5", 0.5), (b"5.", 5.0), (b"999", 180)]
)
def test_a_timeout_is_seconds_at_most_the_cap(value: bytes, seconds: float) -> None:
    assert parse_timeout(value, cap=180) == seconds


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"0",
        b"0.0",
        b"-1",
        b"+1",
        b"nan",
        b"inf",
        b"1e3",
        b"1_0",
        b" 1",
        b"1s",
        b".",
        b"9" * 13,
    ],
)
def test_a_timeout_that_is_no_positive_plain_decimal_is_refused(value: bytes) -> None:
    with pytest.raises(InvalidTimeout):
        parse_timeout(value, cap=180)
