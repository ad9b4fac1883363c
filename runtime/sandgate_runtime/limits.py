"""Which limits of the kernel hold for whom (setrlimit(2)).

The number of processes is limited for the runtime itself, and with it for all it starts: the
kernel counts them per user, so a limit on commands alone could not hold. CPU time and memory
are limited for commands only; the server that started them lives for as long as the sandbox.

They are set in the child between fork and exec. Three other ways were tried or weighed:
`prlimit` from outside comes after the command may have forked; a shell that calls `ulimit` and
then `exec` hides whether the program was missing, not executable or malformed behind its own
exit codes and texts; limits of the runtime lowered for an instant leave the hard limit where
it was. The price is a fork in place of a vfork: 1.7 ms of a 2.6 ms spawn at 30 MB resident.

Memory is RLIMIT_DATA, not RLIMIT_AS: it counts what a program can write to, where RLIMIT_AS
counts address space, of which node and Go programs reserve gigabytes that they never touch.
"""

import contextlib
import os
import resource
import signal
from collections.abc import Callable

from sandgate_runtime import linux

MAX_ARGUMENT_BYTES = 131_071
"""Longest single argument or variable that Linux takes (MAX_ARG_STRLEN less its NUL)."""

MAX_ARGUMENTS_BYTES = 6 * 1024 * 1024
"""Most that Linux takes of arguments and variables together (3/4 of its standard stack)."""

MAX_OPEN_FILES = 65_536
"""What the runtime raises its own soft limit to, as far as it may: ten thousand connections
leave room for commands' pipes."""

OOM_SCORE = b"500"
"""Of commands (proc_pid_oom_score_adj(5)): where memory runs out the kernel takes one of them,
and not the server, which stands at 0."""


def limit_processes(maximum: int | None) -> None:
    """Limit the processes of this user, this one and its descendants included.

    Without effect for the real root of the machine, whom the kernel exempts.
    """
    if maximum is not None:
        _lower(resource.RLIMIT_NPROC, maximum)


def raise_open_files() -> int:
    """Raise our own soft limit of descriptors; return what it was."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return soft


def build_preparation(
    *,
    cpu_seconds: int | None,
    memory_bytes: int | None,
    open_files: int | None,
    usual_open_files: int | None = None,
) -> Callable[[], None]:
    """Return what a command's process does to itself before it becomes the command.

    `usual_open_files` is the soft limit where `open_files` gives none.
    """

    def prepare() -> None:
        # Orphans among the command's descendants become its children, not the runtime's. While
        # it lives, everything that it started can be found below it, `setsid` or not. A kernel
        # that knows neither call (some sandboxed ones) still runs commands.
        linux.become_subreaper()
        # A runtime that is killed without notice takes its commands along.
        linux.signal_on_parent_death(signal.SIGKILL)
        _offer_to_oom_killer()
        if open_files is not None:
            _lower(resource.RLIMIT_NOFILE, open_files)
        elif usual_open_files is not None:
            # Programs that close every descriptor one by one take long below a high limit.
            _, ceiling = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (usual_open_files, ceiling))
        if cpu_seconds is not None:
            # SIGXCPU names the cause; whoever ignores it is killed one second later.
            _lower(resource.RLIMIT_CPU, cpu_seconds, cpu_seconds + 1)
        if memory_bytes is not None:
            _lower(resource.RLIMIT_DATA, memory_bytes)

    return prepare


def _offer_to_oom_killer() -> None:
    with contextlib.suppress(OSError):  # where /proc is read-only
        descriptor = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
        os.write(descriptor, OOM_SCORE)
        os.close(descriptor)


def _lower(kind: int, soft: int, hard: int | None = None) -> None:
    """Set both limits, within the hard limit that already holds; `hard` defaults to `soft`."""
    hard = soft if hard is None else hard
    _, ceiling = resource.getrlimit(kind)
    if ceiling != resource.RLIM_INFINITY:
        soft, hard = min(soft, ceiling), min(hard, ceiling)
    resource.setrlimit(kind, (soft, hard))
