"""How fast a pool gets members, as it was seen. Pure; times are the caller's clock."""

_SMOOTHING = 0.3
_FIRST_GUESS_SECONDS = 0.5

LEAST_SECONDS = 1.0
MOST_SECONDS = 60.0
"""What a client is told to wait at most: by then a lease may have ended that none foresees."""


class RefillRate:
    """The pace at which members become free for claims."""

    def __init__(self) -> None:
        self._start_seconds = _FIRST_GUESS_SECONDS
        self._gap_seconds: float | None = None
        self._last: float | None = None

    def started(self, seconds: float) -> None:
        """Note how long a start took."""
        self._start_seconds += _SMOOTHING * (seconds - self._start_seconds)

    def offered(self, now: float) -> None:
        """Note that a member became free."""
        if self._last is not None:
            gap = now - self._last
            before = gap if self._gap_seconds is None else self._gap_seconds
            self._gap_seconds = before + _SMOOTHING * (gap - before)
        self._last = now

    def wait(self, *, place: int, slots: int, room: bool) -> float:
        """Return how long the one at this place in line will wait, in bounds.

        With room for another member its start decides, else how often one became free of late.
        """
        if room:
            seconds = -(-place // slots) * self._start_seconds
        else:
            seconds = place * (self._gap_seconds or self._start_seconds)
        return min(MOST_SECONDS, max(LEAST_SECONDS, seconds))
