"""What a request asks for: the routing fields of its head, checked.

Pure. A routing field comes at most once and is spelled with hyphens: parsers behind us that
fold `_` or `.` into `-`, or that take another of two lines, would see another sandbox than
the one that was authorized. Empty optional fields count as absent.
"""

import functools
import math
import re
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from sandgate_router.errors import (
    AmbiguousRouting,
    InvalidNamespace,
    InvalidPort,
    InvalidSandboxId,
    InvalidTimeout,
    SandboxIdRequired,
)
from sandgate_router.names import (
    DEFAULT_NAMESPACE,
    DEFAULT_PORT,
    Label,
    Port,
    parse_label,
    parse_port,
)

ID = b"x-sandbox-id"
NAMESPACE = b"x-sandbox-namespace"
PORT = b"x-sandbox-port"
UID = b"x-sandbox-uid"
POD_IP = b"x-sandbox-pod-ip"
TIMEOUT = b"x-sandbox-timeout"

ROUTING_FIELDS = frozenset({ID, NAMESPACE, PORT, UID, POD_IP})
"""A request that carries one of these is for a sandbox."""

_SINGLE_FIELDS = ROUTING_FIELDS | {TIMEOUT, b"x-sandbox-token"}

REMEMBERED_TARGETS = 16_384
"""Routings whose check is remembered, by the bytes of the fields: 0.3 µs instead of 3."""

MAX_POD_IP_BYTES = 64
"""Longest X-Sandbox-Pod-IP that is remembered; an IPv6 address has 39 characters, and a zone."""

_SECONDS = re.compile(rb"[0-9]{1,12}(?:\.[0-9]{0,12})?|\.[0-9]{1,12}")
"""Plain decimals only: `float()` would also take `1e3`, `1_0` and `nan`."""

_UID = re.compile(rb"[\x21-\x7e]{1,253}")


class Target(NamedTuple):
    """The sandbox and the port that a request names."""

    sandbox: Label
    namespace: Label
    port: Port


class Routing(NamedTuple):
    """All that the routing fields of one request say."""

    target: Target
    sandbox: tuple[Label, Label]
    """Namespace and id, without the port."""
    uid: str | None
    """The generation that the client insists on; None takes any."""
    pod_ip: str | None
    """The text of X-Sandbox-Pod-IP; whether it is looked at is a setting."""


def is_for_a_sandbox(values: dict[bytes, bytes], aliases: AbstractSet[bytes]) -> bool:
    """Tell whether a request belongs to the relay: it carries a routing field, or an alias."""
    return not (ROUTING_FIELDS.isdisjoint(values) and ROUTING_FIELDS.isdisjoint(aliases))


def parse_routing(
    values: dict[bytes, bytes], repeated: AbstractSet[bytes], aliases: AbstractSet[bytes]
) -> Routing:
    """Return what the routing fields say.

    Args:
        values: the first value of each field, by lower-case name.
        repeated: lower-case names that came more than once.
        aliases: names that came spelled with `_` or `.`, here with `-`.

    The order of the checks is that of the routers that clients know: id, namespace, port,
    address; the first failure wins.

    Raises:
        BadRequest: one of its kinds, for the first field that is wrong.
    """
    if (repeated and not _SINGLE_FIELDS.isdisjoint(repeated)) or (
        aliases and not _SINGLE_FIELDS.isdisjoint(aliases)
    ):
        raise AmbiguousRouting
    get = values.get
    pod_ip = get(POD_IP)
    if pod_ip is not None and len(pod_ip) > MAX_POD_IP_BYTES:
        # No address; whether that matters is a setting. It is not worth remembering.
        return _parse_routing(get(ID), get(NAMESPACE), get(PORT), get(UID), None)._replace(
            pod_ip=pod_ip.decode("latin-1")
        )
    return _parse_routing(get(ID), get(NAMESPACE), get(PORT), get(UID), pod_ip)


@functools.lru_cache(maxsize=REMEMBERED_TARGETS)
def _parse_routing(
    raw_id: bytes | None,
    raw_namespace: bytes | None,
    raw_port: bytes | None,
    raw_uid: bytes | None,
    raw_ip: bytes | None,
) -> Routing:
    if not raw_id:
        raise SandboxIdRequired
    try:
        sandbox = parse_label(raw_id)
    except ValueError as error:
        raise InvalidSandboxId from error
    namespace, port = DEFAULT_NAMESPACE, DEFAULT_PORT
    if raw_namespace:
        try:
            namespace = parse_label(raw_namespace)
        except ValueError as error:
            raise InvalidNamespace from error
    if raw_port:
        try:
            port = parse_port(raw_port)
        except ValueError as error:
            raise InvalidPort from error
    return Routing(
        Target(sandbox, namespace, port),
        (namespace, sandbox),
        uid=_parse_uid(raw_uid) if raw_uid else None,
        pod_ip=raw_ip.decode("latin-1") if raw_ip else None,
    )


def parse_timeout(value: bytes, *, cap: float) -> float:
    """Return X-Sandbox-Timeout in seconds, at most `cap`; raise InvalidTimeout."""
    if _SECONDS.fullmatch(value) is None:
        raise InvalidTimeout
    seconds = float(value)
    if seconds <= 0 or not math.isfinite(seconds):
        raise InvalidTimeout
    return min(seconds, cap)


def _parse_uid(value: bytes) -> str:
    if _UID.fullmatch(value) is None:
        raise AmbiguousRouting("X-Sandbox-UID is not a UID (printable ASCII, at most 253).")
    return value.decode("ascii")
