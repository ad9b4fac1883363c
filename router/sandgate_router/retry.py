"""When something may be sent a second time. Pure: the answers are numbers and booleans."""

from sandgate_router.head import RequestHead

DIAL_DELAYS: tuple[float, ...] = (0.2, 0.4, 0.8)
"""Seconds between tries to connect: the routers that clients know wait as long."""

DIAL_SECONDS = 5.0
"""All tries together. A sandbox that takes longer to accept is not going to answer."""

_REPLAYED = frozenset({b"GET", b"HEAD", b"OPTIONS"})


def may_replay(head: RequestHead, *, reused: bool, answered: bool) -> bool:
    """Tell whether a request may go out again on a fresh connection.

    Only where the old connection was taken from the pool, so that the sandbox may have closed
    it before our request arrived (RFC 9112 section 9.3.1), no byte of an answer came, and the
    request has no content and a safe method. Everything else is sent once.
    """
    return reused and not answered and head.method in _REPLAYED and not head.has_content
