"""The few system calls that Python has no name for (prctl(2)).

Looked up once at import: between fork and exec no library may be loaded any more.
"""

import ctypes
import signal

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

_prctl = ctypes.CDLL(None).prctl


def become_subreaper() -> bool:
    """Become the parent of every descendant that loses its own; say whether the kernel agreed.

    The mark survives exec but is not inherited by children, so each process that shall have it
    asks for itself.
    """
    return _call(_PR_SET_CHILD_SUBREAPER, 1)


def signal_on_parent_death(number: signal.Signals) -> bool:
    """Ask for a signal when the thread that started this process ends; say whether it will come."""
    return _call(_PR_SET_PDEATHSIG, number)


def _call(option: int, argument: int) -> bool:
    return int(_prctl(option, argument, 0, 0, 0)) == 0
