"""What goes wrong, as a test wants it."""

from collections.abc import Callable
from dataclasses import dataclass, field

from support.fake_kube.errors import ApiError


@dataclass(slots=True)
class Call:
    """One request, as faults and rules see it."""

    verb: str
    """As RBAC has it: get, list, watch, create, update, patch, delete."""
    group: str
    resource: str
    """`sandboxes`, or `sandboxes/status`."""
    namespace: str
    name: str


@dataclass(slots=True)
class Fault:
    """Refuses some requests."""

    code: int
    reason: str = "InternalError"
    message: str = "a test wants it so"
    retry_after: int | None = None
    times: int | None = None
    """How often; None is for ever."""
    when: Callable[[Call], bool] = lambda _: True
    after: bool = False
    """Whether the request is done before it is refused, as when an answer gets lost."""

    def hits(self, call: Call, *, after: bool) -> bool:
        """Tell whether this request is refused, and count it."""
        if self.times == 0 or after != self.after or not self.when(call):
            return False
        if self.times is not None:
            self.times -= 1
        return True

    def error(self) -> ApiError:
        return ApiError(self.code, self.reason, self.message, retry_after=self.retry_after)


@dataclass(slots=True)
class Faults:
    """All that is wrong at the moment."""

    latency: float = 0.0
    """Seconds before any request is looked at."""
    latency_of: Callable[[Call], float] = lambda _: 0.0
    """Seconds more for some requests."""
    list_latency: float = 0.0
    """Seconds more before a list is answered."""
    refusals: list[Fault] = field(default_factory=list)
    duplicate_events: bool = False
    reorder_events: bool = False
    """Whether events that wait together in a watch leave in the wrong order."""
    hold_events: bool = False
    """Whether watches are silent, as where a connection is half open."""
    bookmark_seconds: float = 60.0

    def check(self, call: Call, *, after: bool = False) -> None:
        """Raise what a request is refused with, if it is."""
        for fault in self.refusals:
            if fault.hits(call, after=after):
                raise fault.error()
