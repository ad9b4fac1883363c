"""Which sandboxes nobody reaches through this gateway, by their names alone.

Pure. In a cluster a sandbox's name is a Service's name, so without this a request for
`kube-system/kube-dns` or `default/kubernetes` would reach the cluster's own services, and one
for the gateway's Service the gateway itself. Checked before any look-up, query or dial; what
exists plays no part in the answer.
"""

import functools
import re
from collections.abc import Sequence

from sandgate_router.errors import NotAllowedHere
from sandgate_router.target import REMEMBERED_TARGETS, Target


class Denied:
    """The names that are refused."""

    def __init__(self, patterns: Sequence[str]) -> None:
        """Refuse what matches one of `patterns`, each `namespace/id` as the settings have it.

        `*` stands for any run of characters inside a label, none included.
        """
        self._patterns = tuple(patterns)
        # One expression: it is matched against every request to a sandbox.
        match = re.compile(
            "|".join(re.escape(pattern).replace(r"\*", ".*") for pattern in patterns) or r"(?!)"
        ).fullmatch

        @functools.lru_cache(maxsize=REMEMBERED_TARGETS)
        def refuses(target: Target) -> bool:
            return match(f"{target.namespace}/{target.sandbox}") is not None

        self._refuses = refuses

    def __repr__(self) -> str:
        return f"<Denied {', '.join(self._patterns) or 'nothing'}>"

    def check(self, target: Target) -> None:
        """Raise NotAllowedHere when `target` is refused."""
        if self._refuses(target):
            name = f"{target.namespace}/{target.sandbox}"
            raise NotAllowedHere(f"{name} is not reached through this gateway (SANDGATE_DENIED).")
