"""What a request asks for: the routing fields of its head, checked.

Pure. A routing field comes at most once and is spelled with hyphens: parsers behind us that
fold `_` or `.` into `-`, or that take another of two lines, would see another sandbox than
the one that was authorized. Empty optional fields count as absent.
"""

import ipaddress
import math
import re
from dataclasses import dataclass

from sandgate_router.errors import (
    AmbiguousRouting,
    InvalidNamespace,
    InvalidPodIp,
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
_FOLDED = frozenset(name.replace(b"-", b"") for name in _SINGLE_FIELDS)
_SEPARATORS = re.compile(rb"[-_.]")

_SECONDS = re.compile(rb"[0-9]{1,12}(?:\.[0-9]{0,12})?|\.[0-9]{1,12}")
"""Plain decimals only: `float()` would also take `1e3`, `1_0` and `nan`."""

_UID = re.compile(rb"[\x21-\x7e]{1,253}")


@dataclass(frozen=True, slots=True)
class Target:
    """The sandbox and the port that a request names."""

    sandbox: Label
    namespace: Label
    port: Port


@dataclass(frozen=True, slots=True)
class Routing:
    """All that the routing fields of one request say."""

    target: Target
    uid: str | None
    """The generation that the client insists on; None takes any."""
    pod_ip: str | None


class RoutingFields:
    """Collects the fields of one head that steer the relay, while the head is being read."""

    __slots__ = ("values",)

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}

    def add(self, name: bytes, value: bytes) -> None:
        """Take a field whose lower-case name begins with `x` and folds to one of ours.

        Raises:
            AmbiguousRouting: the field came before, or is spelled with `_` or `.`.
        """
        if name not in _SINGLE_FIELDS or name in self.values:
            raise AmbiguousRouting
        self.values[name] = value

    @property
    def for_a_sandbox(self) -> bool:
        """Whether the request belongs to the relay."""
        return not ROUTING_FIELDS.isdisjoint(self.values)


def steers(name: bytes) -> bool:
    """Tell whether a lower-case field name is, or may be taken for, a field that steers us."""
    return _SEPARATORS.sub(b"", name) in _FOLDED


def parse_routing(values: dict[bytes, bytes]) -> Routing:
    """Return what the routing fields say.

    The order of the checks is that of the routers that clients know: id, namespace, port,
    address; the first failure wins.

    Raises:
        SandboxIdRequired, InvalidSandboxId, InvalidNamespace, InvalidPort, InvalidPodIp.
    """
    raw_id = values.get(ID)
    if not raw_id:
        raise SandboxIdRequired
    try:
        sandbox = parse_label(raw_id)
    except ValueError as error:
        raise InvalidSandboxId from error
    namespace, port = DEFAULT_NAMESPACE, DEFAULT_PORT
    if raw_namespace := values.get(NAMESPACE):
        try:
            namespace = parse_label(raw_namespace)
        except ValueError as error:
            raise InvalidNamespace from error
    if raw_port := values.get(PORT):
        try:
            port = parse_port(raw_port)
        except ValueError as error:
            raise InvalidPort from error
    raw_uid = values.get(UID)
    raw_ip = values.get(POD_IP)
    return Routing(
        Target(sandbox, namespace, port),
        uid=_parse_uid(raw_uid) if raw_uid else None,
        pod_ip=_parse_pod_ip(raw_ip) if raw_ip else None,
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


def _parse_pod_ip(value: bytes) -> str:
    try:
        return str(ipaddress.ip_address(value.decode("ascii")))
    except ValueError as error:
        raise InvalidPodIp from error
