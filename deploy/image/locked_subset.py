#!/usr/bin/env python3
"""Print the part of the lock that one extra of this distribution needs, hashes and all.

The lock holds everything, the tools of development too; an image holds what it runs. So the
whole lock is installed where the image is built, with this distribution beside it; what its
metadata there asks for, and so on, is what the image gets, in exactly these versions.

    python locked_subset.py requirements.lock gateway > image.lock
"""

import re
import sys
from collections.abc import Set as AbstractSet
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import NormalizedName, canonicalize_name

DISTRIBUTION = canonicalize_name("sandgate")

_ENTRY = re.compile(
    r"^(?P<name>[A-Za-z0-9._-]+)(?:\[[^\]]*\])?==.*?(?=^[A-Za-z0-9]|\Z)", re.MULTILINE | re.DOTALL
)


def find_needed(extra: str) -> frozenset[NormalizedName]:
    """Return the names of all distributions that DISTRIBUTION with this extra needs here."""
    needed: dict[NormalizedName, AbstractSet[str]] = {}
    waiting = [(DISTRIBUTION, frozenset({extra}))]
    while waiting:
        name, extras = waiting.pop()
        known = needed.get(name)
        if known is not None and extras <= known:
            continue
        needed[name] = extras | (known or frozenset())
        for text in metadata.requires(name) or []:
            requirement = Requirement(text)
            if _applies(requirement, needed[name]):
                found = canonicalize_name(requirement.name)
                waiting.append((found, frozenset(requirement.extras)))
    return frozenset(needed) - {DISTRIBUTION}


def select(lock: str, names: AbstractSet[str]) -> str:
    """Return the entries of these names; raise ValueError where the lock lacks one."""
    entries = {canonicalize_name(found["name"]): found[0] for found in _ENTRY.finditer(lock)}
    missing = sorted(names - entries.keys())
    if missing:
        raise ValueError(f"the lock lacks {', '.join(missing)}; run: make lock")
    return "".join(entries[canonicalize_name(name)] for name in sorted(names))


def _applies(requirement: Requirement, extras: AbstractSet[str]) -> bool:
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in {"", *extras})


def main(lock: str, extra: str) -> str:
    """Return the subset; end with a word where there is none."""
    try:
        return select(Path(lock).read_text(encoding="utf-8"), find_needed(extra))
    except (ValueError, metadata.PackageNotFoundError) as error:
        sys.exit(f"locked_subset: {error}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: locked_subset.py LOCK EXTRA")
    sys.stdout.write(main(*sys.argv[1:]))
