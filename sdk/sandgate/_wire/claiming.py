"""What it takes to claim a sandbox, to find it again, and to start a process in it."""

from dataclasses import replace

from sandgate._wire.claims import Grant, Page
from sandgate._wire.control import Control
from sandgate._wire.flow import Flow
from sandgate._wire.lease import Lease
from sandgate._wire.message import Call
from sandgate._wire.processes import Processes, Spec
from sandgate.errors import (
    ClaimNotFound,
    Forbidden,
    GatewayUnreachable,
    OutcomeUnknown,
    SandboxFailed,
)
from sandgate.types import Claim, ProcessInfo


def claim_once(call: Call[Grant]) -> Flow[Grant]:
    """Claim a sandbox; ask for the same one again where the answer was lost."""
    try:
        grant: Grant = yield call
    except GatewayUnreachable as error:
        if error.reached == "no":
            raise
        # The answer was lost, perhaps with a claim in it that nobody would ever release.
        # Its idempotency key makes the second try give that same claim.
        grant = yield call
    return grant


def find_claim(control: Control, name: str, *, namespace: str) -> Flow[Grant]:
    """Read a live claim and renew it, which alone tells its token."""
    claim: Claim = yield control.read(name, namespace=namespace)
    if claim.state == "failed":
        reason = claim.reason or "no reason is known"
        raise SandboxFailed(f"the sandbox of {namespace}/{name} failed: {reason}")
    try:
        renewed: Grant = yield control.renew(name, namespace=namespace, uid=claim.uid)
    except (ClaimNotFound, Forbidden):
        # Who may read it and no more gets no token; there are gateways that ask for none.
        return Grant(claim, None)
    new = renewed.claim
    merged = replace(
        claim,
        token=new.token,
        token_expires_at=new.token_expires_at,
        expires_at=new.expires_at,
    )
    return Grant(merged, renewed.life)


def list_claims(
    control: Control,
    *,
    namespace: str | None,
    pool: str | None,
    label_selector: str | None,
) -> Flow[list[Claim]]:
    """Return all live claims, page by page."""
    claims: list[Claim] = []
    cursor: str | None = None
    while True:
        page: Page = yield control.list_claims(
            namespace=namespace, pool=pool, label_selector=label_selector, cursor=cursor
        )
        claims += page.claims
        cursor = page.cursor
        if cursor is None:
            return claims


def start_process(lease: Lease, spec: Spec, *, key: str) -> Flow[ProcessInfo]:
    """Start a process; where the answer is lost it is not started again."""
    try:
        started: ProcessInfo = yield from lease.authorized(
            lambda route: Processes(route).start(spec, key=key)
        )
    except GatewayUnreachable as error:
        if error.reached == "no":
            raise
        raise OutcomeUnknown(f"{error.detail}; the command may run", reached="unknown") from error
    return started
