"""What opens the relay, put together from the settings: keys, tokens, and who checks them.

The file of keys is followed while the gateway runs. The secret of scoped tokens is read once,
as the router that clients know reads it.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.metrics_core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from sandgate_router.authorize import Anyone, Authorizer, ByCapability, SharedToken
from sandgate_router.capability import Capabilities, NoTokens, Reason, Tokens
from sandgate_router.config import Config
from sandgate_router.keys import RELOAD_SECONDS, KeyFile, build_own_keys
from sandgate_router.scoped_token import ScopedTokens, load_scoped_secret


@dataclass(frozen=True, slots=True)
class Credentials:
    """Who may use the relay, and what mints the tokens of claims."""

    authorizer: Authorizer
    tokens: Tokens
    """Mints where there is a key, whoever checks: the control API takes a claim's token, too."""
    key_file: KeyFile | None

    @contextlib.asynccontextmanager
    async def following(self, *, every: float = RELOAD_SECONDS) -> AsyncIterator[None]:
        """Use new keys soon after the file has them, while the context lasts."""
        if self.key_file is None or not isinstance(self.tokens, Capabilities):
            yield
            return
        following = self.key_file.follow(self.tokens.replace_keys, every=every)
        task = asyncio.get_running_loop().create_task(following)
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def metrics(self) -> Collector:
        """Return what a scraper reads of them."""
        authorizer = self.authorizer
        refusals = authorizer.refusals if isinstance(authorizer, ByCapability) else {}
        return _Metrics(refusals, self.key_file)


def build_credentials(
    config: Config,
    *,
    now: Callable[[], float] = time.time,
    clock: Callable[[], float] = time.monotonic,
) -> Credentials:
    """Read what the settings name; raise BadConfig where it cannot be used.

    Args:
        config: the settings.
        now: Unix seconds, by which tokens begin and end.
        clock: seconds that never go back, by which the log keeps quiet.
    """
    key_file = KeyFile(config.keys) if config.keys else None
    tokens: Tokens = NoTokens()
    if key_file is not None:
        tokens = Capabilities(key_file.keys, audience=config.audience, now=now)
    elif config.makes_own_key:
        tokens = Capabilities(build_own_keys(), audience=config.audience, now=now)
    scoped = None
    if config.scoped_token_file is not None:
        scoped = ScopedTokens(load_scoped_secret(config.scoped_token_file), now=now)
    authorizer: Authorizer = Anyone()
    if config.effective_auth == "capability":
        authorizer = ByCapability(
            tokens, scoped, clock=clock, router_token=config.router_auth_token
        )
    elif config.effective_auth == "shared" and config.router_auth_token is not None:
        authorizer = SharedToken(config.router_auth_token)
    return Credentials(authorizer, tokens, key_file)


class _Metrics(Collector):
    """Families over numbers that others keep; the reasons are a closed set of words."""

    def __init__(self, refusals: Mapping[Reason, int], key_file: KeyFile | None) -> None:
        self._refusals = refusals
        self._key_file = key_file

    def collect(self) -> Iterator[Metric]:
        """Yield every family as it stands; called in any thread."""
        refused = CounterMetricFamily(
            "sandgate_tokens_refused",
            "Requests for sandboxes without a valid token, by reason.",
            labels=("reason",),
        )
        for reason, count in list(self._refusals.items()):
            refused.add_metric((reason,), count)
        yield refused
        if self._key_file is not None:
            yield CounterMetricFamily(
                "sandgate_key_reload_failures",
                "Times that the file of keys changed to one that cannot be used.",
                value=self._key_file.failures,
            )
