"""What may go wrong with the Kubernetes API, told apart by what the caller can do about it.

Texts of the API are for our log. They name service accounts and rules, so they never enter an
answer to a client.
"""


class KubeError(Exception):
    """The API did not do what it was asked for."""


class Unreachable(KubeError):
    """No answer came: refused, broken off or too late. Whether it was done is unknown."""


class Refused(KubeError):
    """The API answered with an error."""

    def __init__(
        self, code: int, reason: str, message: str, *, what: str, retry_after: float | None = None
    ) -> None:
        super().__init__(f"{what}: {code} {reason}: {message}")
        self.code = code
        self.reason = reason
        """The API's word for it: `Forbidden`, `AlreadyExists`, …"""
        self.message = message
        self.what = what
        """What was asked, in words."""
        self.retry_after = retry_after
        """Seconds after which the API wants to be asked again; None when it did not say."""

    @property
    def is_lasting(self) -> bool:
        """Whether the same request would be refused again."""
        return self.code < 500 and self.code not in {408, 429}


class NotFound(Refused):
    """There is no such object, or no such kind."""


class Conflict(Refused):
    """The object has another version or UID than was asked for, or its name is taken."""

    @property
    def is_taken(self) -> bool:
        """Whether the name belongs to another object."""
        return self.reason == "AlreadyExists"


class Denied(Refused):
    """We may not do that (401, 403)."""


class Gone(Refused):
    """The version that was asked for has expired (410): everything has to be listed anew."""


_KINDS: dict[int, type[Refused]] = {
    401: Denied,
    403: Denied,
    404: NotFound,
    409: Conflict,
    410: Gone,
}


def build_refused(
    code: int, reason: str, message: str, *, what: str, retry_after: float | None = None
) -> Refused:
    """Return the error for an answer with this status."""
    kind = _KINDS.get(code, Refused)
    return kind(code, reason, message, what=what, retry_after=retry_after)
