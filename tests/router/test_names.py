"""Labels and ports, on raw bytes."""

import pytest

from sandgate_router.names import DEFAULT_NAMESPACE, DEFAULT_PORT, parse_label, parse_port

LABELS = [b"a", b"0", b"sb-1", b"a" * 63, b"a--b", b"123"]
NO_LABELS = [
    b"",
    b"A",
    b"-a",
    b"a-",
    b"-",
    b"a" * 64,
    b"a.b",
    b"a_b",
    b"a b",
    b" a",
    b"a\n",
    b"a\x00",
    b"a/b",
    b"a@b",
    b"caf\xc3\xa9",
    b"\xff",
]
NO_PORTS = [
    b"",
    b"0",
    b"00",
    b"080",
    b"65536",
    b"99999",
    b"100000",
    b"-1",
    b"+1",
    b"8e3",
    b"8_0",
    b"0x50",
    b" 80",
    b"80 ",
    b"80\n",
    "٨٠".encode(),
]


@pytest.mark.parametrize("value", LABELS)
def test_a_label_is_returned_as_it_is(value: bytes) -> None:
    assert parse_label(value) == value.decode()


@pytest.mark.parametrize("value", NO_LABELS)
def test_what_is_no_label_is_refused_with_the_value_quoted(value: bytes) -> None:
    with pytest.raises(ValueError, match="is not a label") as caught:
        parse_label(value)
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize(("value", "port"), [(b"1", 1), (b"8888", 8888), (b"65535", 65535)])
def test_a_port_in_plain_digits_is_returned(value: bytes, port: int) -> None:
    assert parse_port(value) == port


@pytest.mark.parametrize("value", NO_PORTS)
def test_a_port_outside_the_range_or_not_in_plain_digits_is_refused(value: bytes) -> None:
    with pytest.raises(ValueError, match="is not a port"):
        parse_port(value)


def test_the_defaults_are_what_clients_expect() -> None:
    assert (DEFAULT_NAMESPACE, DEFAULT_PORT) == ("default", 8888)
