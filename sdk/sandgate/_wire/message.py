"""One request, one answer, and the pair of a request with the way to read its answer."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")

Fields = Sequence[tuple[str, str]]
"""Header fields in order, repeats kept; names in lower case."""

IDEMPOTENT_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE"})
"""Methods whose repetition changes nothing more (RFC 9110 section 9.2.2)."""

CALL_GAP = 60.0
"""Seconds that an answer, or its next byte, may take; what the neighbouring SDK waits."""

ERROR_BODY_BYTES = 64 * 1024
"""The most that is read of a refusal where the answer is streamed; ours are below 1 KiB."""


class Body(Protocol):
    """Content that is produced while it is sent."""

    def __iter__(self) -> Iterator[bytes]: ...


@dataclass(frozen=True, slots=True)
class Request:
    """What a shell has to send, and how long it may wait."""

    method: str
    target: str
    """Path and query, percent-encoded; goes out byte for byte."""
    fields: Fields
    """Without Host, Content-Length and Transfer-Encoding: the shell frames the body."""
    body: bytes | Body = b""
    gap: float = CALL_GAP
    """Seconds without a byte after which the connection counts as lost."""
    origin: str | None = None
    """Scheme, host and port to send it to; None is the gateway."""

    @property
    def idempotent(self) -> bool:
        """Whether sending it twice does no more than sending it once."""
        return self.method in IDEMPOTENT_METHODS


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer."""

    status: int
    fields: Fields
    body: bytes

    def field(self, name: str) -> str | None:
        """Return the first value of a field, its name in lower case; None when absent."""
        return next((value for key, value in self.fields if key == name), None)


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """A request and how its answer is read: the value, or a typed error raised."""

    request: Request
    decode: Callable[[Reply], T]


def base_fields(*, accept: str = "application/json") -> list[tuple[str, str]]:
    """Return the fields that every request carries.

    `identity`, because a gateway passes codings through and nothing here undoes them.
    """
    return [("user-agent", "sandgate-python"), ("accept", accept), ("accept-encoding", "identity")]


def nothing(reply: Reply) -> None:
    """Read an answer whose success says it all."""
