"""A user of its own for each sandbox, where the gateway runs as root.

Files of a sandbox then never belong to root, and RLIMIT_NPROC, from which root is exempt,
counts this sandbox alone. The numbers are those that systemd keeps for such short-lived users.
"""

import os
import pwd
import random
import socket

FIRST, LAST = 61184, 65519
"""systemd's range of dynamic users (uids.txt in its documentation): no account lies there."""


class OwnUser:
    """A user number that no other live sandbox of this machine has, until it is closed."""

    def __init__(self, uid: int, claim: socket.socket) -> None:
        self.uid = uid
        self._claim = claim

    @classmethod
    def reserve(cls) -> "OwnUser":
        """Take a free number; raise OSError when there is none."""
        numbers = range(FIRST, LAST + 1)
        for uid in random.sample(numbers, len(numbers)):
            if (claim := _claim(uid)) is not None:
                return cls(uid, claim)
        raise OSError(f"no user number is free between {FIRST} and {LAST}")

    def close(self) -> None:
        """Give the number back."""
        self._claim.close()


def runs_as_root() -> bool:
    """Tell whether this process may start others as another user."""
    return os.geteuid() == 0


def _claim(uid: int) -> socket.socket | None:
    try:
        pwd.getpwuid(uid)  # one of systemd's own services has it now
    except KeyError:
        pass
    else:
        return None
    # An abstract socket is a lock that ends with the process, without a file to clean up.
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        claim.bind(f"\0sandgate-uid-{uid}")
    except OSError:
        claim.close()
        return None
    return claim
