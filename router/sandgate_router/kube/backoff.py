"""How long to wait before another try: doubling, with jitter, so that replicas do not march."""

import random


class Backoff:
    """The waits of one thing that is tried again and again."""

    def __init__(self, *, first: float = 0.2, most: float = 30.0) -> None:
        """Wait about `first` seconds after the first failure, and never more than `most`."""
        self._first = first
        self._most = most
        self._failures = 0

    def reset(self) -> None:
        """Begin anew: it worked."""
        self._failures = 0

    def next(self, at_least: float | None = None) -> float:
        """Return the seconds to wait now, `at_least` what the other side has asked for."""
        span = min(self._most, self._first * 2 ** min(self._failures, 20))
        self._failures += 1
        wait = random.uniform(span / 2, span)  # noqa: S311 - spreads load, hides nothing
        return wait if at_least is None else max(wait, min(at_least, self._most))
