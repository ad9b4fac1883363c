"""Nothing of a released sandbox is left in those that come after it."""

import pytest
from support.local_sandbox import (
    Inside,
    needs_bubblewrap,
    pool,
    request,
    running_registry,
)

from sandgate_router.registry.local.pools import LocalIsolation


@pytest.mark.parametrize("isolation", [pytest.param("bubblewrap", marks=needs_bubblewrap), "none"])
async def test_a_place_that_is_free_again_shows_nothing_of_who_had_it_before(
    isolation: LocalIsolation,
) -> None:
    async with running_registry(pool(warm=1, max=1), isolation=isolation) as registry:
        seen = set[str]()
        for _ in range(3):
            inside = Inside(registry, await registry.claim(request()))
            claim = inside.claim
            assert claim.uid not in seen
            assert claim.sandbox not in seen
            seen |= {claim.uid, claim.sandbox}
            assert await inside.sh(
                'ls -A "$HOME"; ls -A /tmp/sandgate-mark 2>/dev/null || true'
            ) in {
                "",
                ".tmp\n",
            }
            assert await inside.sh('echo "$MARK"') == "\n"
            # In two parts, so that the search does not find itself.
            assert await inside.sh("pgrep -f sleep.98'76' || true") == ""
            await inside.sh(
                'export MARK=set; echo secret > "$HOME/left"; (setsid sleep 9876 >/dev/null 2>&1 &)'
            )
            await registry.release(claim.namespace, claim.name)
