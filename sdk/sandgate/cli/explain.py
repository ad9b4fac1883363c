"""Errors in one line, with what to do about them."""

from sandgate.errors import (
    ClaimExists,
    ClaimNotFound,
    ConnectionRefused,
    Forbidden,
    GatewayUnreachable,
    OutcomeUnknown,
    PoolExhausted,
    PoolNotFound,
    QuotaExceeded,
    SandboxFailed,
    SandboxFileNotFound,
    SandboxIsADirectory,
    SandboxNotADirectory,
    SandboxNotFound,
    SandgateError,
    Unauthenticated,
    Unavailable,
    UnexpectedAnswer,
)

_SET_ONE = (
    "set SANDGATE_ROUTER_TOKEN or --router-token to the ROUTER_AUTH_TOKEN of the gateway; a"
    " caller's own token goes into SANDGATE_TOKEN or --token"
)

_ADVICE: tuple[tuple[type[SandgateError], str], ...] = (
    (GatewayUnreachable, "start one with `sandgate up`, or set --url or SANDGATE_URL"),
    (UnexpectedAnswer, "check that --url or SANDGATE_URL names a sandgate gateway"),
    (Unauthenticated, _SET_ONE),
    (Forbidden, "use a token with the right for it, or another namespace"),
    (PoolNotFound, "`sandgate pools` lists them"),
    (PoolExhausted, "release a claim, raise --wait, or use --on-empty cold"),
    (QuotaExceeded, "release a claim of this namespace first"),
    (ClaimExists, "choose another --name, or release that claim"),
    (ClaimNotFound, "it was released or its lease ended; make one with `sandgate claim`"),
    (SandboxFailed, "release the claim and make another with `sandgate claim`"),
    (
        SandboxNotFound,
        "it was released, its lease ended, or it died; make one with `sandgate claim`",
    ),
    (ConnectionRefused, "nothing listens on that port of the sandbox"),
    (OutcomeUnknown, "look at what it did before you run it again"),
    (SandboxFileNotFound, "`sandgate ls` shows what is there; only regular files are read"),
    (SandboxIsADirectory, "name a file in it"),
    (SandboxNotADirectory, "name a directory that exists"),
)
"""Looked through from the top: a base class stands below its own."""


def explain(error: SandgateError | OSError) -> str:
    """Return what went wrong and what to do next."""
    if not isinstance(error, SandgateError):
        # A file of this machine: the operating system's words and the name.
        return f"{error.filename}: {error.strerror}" if error.filename else str(error)
    advice = next((text for kind, text in _ADVICE if isinstance(error, kind)), None)
    if advice is None and isinstance(error, Unavailable):
        wait = "later" if error.retry_after is None else f"in {error.retry_after:g} s"
        advice = f"try again {wait}"
    detail = str(error).rstrip(".")
    return detail if advice is None else f"{detail}; {advice}"
