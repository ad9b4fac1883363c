"""Several requests that are one thing to do, written once for both shells.

A flow is a generator: it yields a call and gets what the call's answer means, or its error at
the same place. So what to do after a 401 or a lost connection is decided here, without a socket,
and a shell only sends, waits and passes on.
"""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, TypeVar

from sandgate._wire.message import Call

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait before going on."""

    seconds: float


Step = Call[Any] | Pause

Flow = Generator[Step, Any, T]


def once(call: Call[T]) -> Flow[T]:
    """Make one call."""
    result: T = yield call
    return result
