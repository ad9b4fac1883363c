"""Warm pools of local sandboxes: runtime processes on this machine, reached by unix sockets.

`registry` puts together what these keep: `leases` the live claims and the table of endpoints,
`idle` an eye on claims that nobody uses, `fleet` all pools, `pool` one pool's state without I/O,
`stock` the pools full, `watched_file` up with the pools file. The starters (`isolated`, `plain`)
make sandboxes and end them. All else serves these: how a start is chained to us (`chain`), what
a sandbox sees (`layout`, `bubblewrap`, `staging`), as whom it runs (`users`), where it lives
(`folder`).
"""

from sandgate_router.registry.local.isolated import check_isolation
from sandgate_router.registry.local.pools import DEFAULT_POOLS, PoolsFile, PoolSpec, load_pools
from sandgate_router.registry.local.registry import LocalRegistry, build_local_registry
from sandgate_router.registry.local.unavailable import IsolationUnavailable

__all__ = [
    "DEFAULT_POOLS",
    "IsolationUnavailable",
    "LocalRegistry",
    "PoolSpec",
    "PoolsFile",
    "build_local_registry",
    "check_isolation",
    "load_pools",
]
