"""One claim in the hand: its names, the token of the moment, and when both must be renewed.

Lease and token are renewed at two thirds of their life, so that a gateway that does not answer
has the last third to come back. A request that is 401 nevertheless is sent once more after one
renewal: a 401 means that no sandbox has seen it.
"""

import json
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from sandgate._wire.claims import Grant, read_claim
from sandgate._wire.control import Control
from sandgate._wire.flow import Flow
from sandgate._wire.route import Route
from sandgate.errors import (
    ClaimNotFound,
    Forbidden,
    InvalidRequest,
    NotSupported,
    SandgateError,
    Unauthenticated,
)
from sandgate.types import Claim

if TYPE_CHECKING:
    from sandgate._wire.message import Call

T = TypeVar("T")

RENEW_AT = 2 / 3
"""Of the life of lease and token."""

RETRY_SECONDS = 5.0
"""Between two tries to renew in the background; less where less is left."""

LEAST_SECONDS = 0.1
"""Between two renewals, whatever the gateway says of their life."""


@dataclass(frozen=True, slots=True)
class Access:
    """How the sandboxes of one connection are reached."""

    control: Control
    router_token: str | None = field(default=None, repr=False)
    origin: Callable[[Claim, int], str] | None = None
    """Where a port of a sandbox is dialled without the gateway; None goes through it."""
    claims: bool = True
    """Whether there is a control API that knows claims."""


class Lease:
    """A claim, shared by all that uses its sandbox."""

    def __init__(
        self, access: Access, grant: Grant, *, clock: Callable[[], float], soon: bool = False
    ) -> None:
        """`soon`: nobody knows how much is left of the life, so it is renewed at once."""
        self._access = access
        self._clock = clock
        self.claim: Claim = grant.claim
        self.released: bool = False
        self.lost: SandgateError | None = None
        """Why no renewal makes sense any more."""
        self._ends: float | None = None
        self.renew_at: float | None = None
        """When it is to be renewed, by the clock; None never."""
        self._schedule(grant.life)
        if soon and self.renewable:
            self.renew_at = clock()

    @property
    def renewable(self) -> bool:
        """Whether there is a claim that could be renewed."""
        return self._access.claims and bool(self.claim.name)

    def route(self, port: int | None = None) -> Route:
        """Return the way to a port of the sandbox, by default the runtime's."""
        claim, access = self.claim, self._access
        port = claim.port if port is None else port
        origin = None if access.origin is None else access.origin(claim, port)
        return Route(
            claim.sandbox,
            claim.namespace,
            port,
            claim.token,
            access.router_token,
            origin,
            claim.uid,
        )

    def authorized(
        self, build: "Callable[[Route], Call[T]]", *, port: int | None = None
    ) -> Flow[T]:
        """Make a call to the sandbox, with one renewal and a second try after a 401."""
        route = self.route(port)
        try:
            result: T = yield build(route)
        except Unauthenticated as error:
            yield from self.after_401(error, route.token)
            result = yield build(self.route(port))
        return result

    def after_401(self, error: SandgateError, token: str | None) -> Flow[None]:
        """Have another token than the refused one; raise the error where there is none."""
        if self.claim.token != token:
            return  # renewed meanwhile
        if not self.renewable or (token is None and self._access.router_token is not None):
            raise error
        yield from self.renewal()
        if self.claim.token == token:
            raise error

    def renewal(self, lease_seconds: float | None = None) -> Flow[None]:
        """Begin the lease anew and have a new token."""
        if not self.renewable:
            raise NotSupported("nobody claimed this sandbox, so there is no lease to renew")
        claim, refusal = self.claim, None
        for capability in self._credentials():
            call = self._access.control.renew(
                claim.name,
                namespace=claim.namespace,
                uid=claim.uid,
                lease_seconds=lease_seconds,
                capability=capability,
            )
            try:
                grant: Grant = yield call
            except (Unauthenticated, Forbidden) as error:
                refusal = error
            else:
                self._adopt(grant)
                return
        assert refusal is not None
        raise refusal

    def background_renewal(self) -> Flow[None]:
        """Renew, and decide when to do so next; raises nothing."""
        if self.released:
            return  # after it was found due
        try:
            yield from self.renewal()
        except (ClaimNotFound, Unauthenticated, Forbidden, NotSupported, InvalidRequest) as error:
            self.lost, self.renew_at = error, None
        except SandgateError as error:
            self._retry_later(error)

    def release(self) -> Flow[None]:
        """End the claim; doing so again, or after its end, is no error."""
        if self.released:
            return
        if self.renewable:
            yield from self._release()
        self.released, self.renew_at = True, None

    def describe(self, env: Mapping[str, str]) -> str:
        """Return all that another process needs to go on with the sandbox, as JSON."""
        claim = {
            name: value.isoformat() if isinstance(value, datetime) else value
            for name, value in asdict(self.claim).items()
        }
        claim["claim"] = claim.pop("name")
        return json.dumps({"version": 1, "claim": claim, "env": dict(env)})

    def _release(self) -> Generator[Any, Any, None]:
        claim = self.claim
        *first, last = (
            self._access.control.release(
                claim.name, namespace=claim.namespace, uid=claim.uid, capability=capability
            )
            for capability in self._credentials()
        )
        for call in first:
            try:
                yield call
            except (Unauthenticated, Forbidden):
                continue
            return
        yield last

    def _credentials(self) -> list[str | None]:
        """Return the tokens to call the control API with: None is the caller's own, or none."""
        valid = self._ends is None or self._clock() < self._ends
        if self._access.control.token is None and self.claim.token is not None and valid:
            return [self.claim.token, None]
        return [None]

    def _adopt(self, grant: Grant) -> None:
        if self.released:
            return
        new = grant.claim
        # A gateway that knows no `uid` renews whatever has the name now.
        if _differ(new.sandbox, self.claim.sandbox) or _differ(new.uid, self.claim.uid):
            name = f"{self.claim.namespace}/{self.claim.name}"
            error = ClaimNotFound(f"the claim {name} ended; another sandbox has its name now")
            self.lost, self.renew_at = error, None
            raise error
        # What a renewal does not tell stays as it was.
        self.claim = replace(
            self.claim,
            state=new.state,
            expires_at=new.expires_at,
            token=new.token,
            token_expires_at=new.token_expires_at,
        )
        self.lost = None
        self._schedule(grant.life)

    def _schedule(self, life: float | None) -> None:
        now = self._clock()
        self._ends = None if life is None else now + life
        wanted = life is not None and self.renewable and not self.released
        self.renew_at = now + max(life * RENEW_AT, LEAST_SECONDS) if wanted and life else None

    def _retry_later(self, error: SandgateError) -> None:
        if self.released:
            return
        now = self._clock()
        if self._ends is not None and now >= self._ends:
            self.lost, self.renew_at = error, None
            return
        left = RETRY_SECONDS if self._ends is None else (self._ends - now) / 4
        self.renew_at = now + min(RETRY_SECONDS, max(left, LEAST_SECONDS))


def _differ(new: str | None, held: str | None) -> bool:
    # Where a sandbox is gone, a gateway may not know its names any more.
    return bool(new and held) and new != held


def parse_description(text: str) -> tuple[Claim, dict[str, str]]:
    """Return what `describe` wrote down; raise ValueError for anything else."""
    try:
        value = json.loads(text)
        claim, env = read_claim(value["claim"]), value["env"]
        version = value["version"]
    except (ValueError, KeyError, TypeError, AttributeError, SandgateError) as error:
        raise ValueError(f"the text does not describe a sandbox: {error}") from error
    if version != 1:
        raise ValueError(f"the text describes a sandbox in version {version!r}, not in 1")
    if not isinstance(env, dict) or not all(isinstance(text, str) for text in env.values()):
        raise ValueError("the text does not describe a sandbox: its env is no object of strings")
    return claim, env


def find_due(leases: Iterable[Lease], *, now: float) -> tuple[Lease | None, float | None]:
    """Return a lease that is to be renewed now, or None and the seconds until one is."""
    times = [(lease.renew_at, lease) for lease in leases if lease.renew_at is not None]
    if not times:
        return None, None
    first, lease = min(times, key=lambda pair: pair[0])
    return (lease, 0.0) if first <= now else (None, first - now)
