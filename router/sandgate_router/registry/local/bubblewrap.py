"""bubblewrap's arguments for one sandbox. Pure.

The code inside has no network, unless its pool gives it the machine's; no capability; no way
to make user namespaces; and nothing to write to but one file system in memory of a fixed size,
which ends with the sandbox. /tmp is a folder on it, so one limit covers all.
"""

from collections.abc import Mapping, Sequence

from sandgate_router.registry.local.layout import HOME, USER_ID, Layout
from sandgate_router.registry.local.pools import Network

SHARED_MEMORY = "/dev/shm"  # noqa: S108 - a place inside the sandbox, nobody else's
TEMPORARY = "/tmp"  # noqa: S108 - likewise

SHARED_MEMORY_BYTES = 64 * 1024**2
"""Size of /dev/shm, as a container engine gives it."""


def build_arguments(
    layout: Layout,
    *,
    sources: Mapping[str, str],
    workspace_bytes: int,
    environ: Mapping[str, str],
    network: Network = "none",
) -> list[str]:
    """Return what bubblewrap is told, but for the command.

    `sources` says where the source of a bind is reached, if not at its own path.
    """
    host = network == "host"
    arguments = [
        # Each namespace by its own: user, network, processes, IPC, host name, control groups.
        *("--unshare-all", "--unshare-user", "--disable-userns"),
        *(["--share-net"] if host else []),
        # New session: without it code could type into the gateway's terminal (TIOCSTI).
        *("--die-with-parent", "--new-session"),
        *("--uid", str(USER_ID), "--gid", str(USER_ID), "--hostname", "sandbox"),
        *("--proc", "/proc", "--dev", "/dev"),
        *("--size", str(SHARED_MEMORY_BYTES), "--perms", "1777", "--tmpfs", SHARED_MEMORY),
        *("--remount-ro", "/dev"),
        *("--size", str(workspace_bytes), "--tmpfs", "/home", "--dir", HOME),
        *("--perms", "1777", "--dir", "/home/.tmp", "--symlink", "home/.tmp", TEMPORARY),
    ]
    for bind in layout.online_binds if host else layout.binds:
        arguments += ["--ro-bind", sources.get(bind.source, bind.source), bind.dest]
    for target, place in layout.links:
        arguments += ["--symlink", target, place]
    arguments += ["--remount-ro", "/", "--chdir", HOME, "--clearenv"]
    for name, value in environ.items():
        arguments += ["--setenv", name, value]
    return arguments


def encode_arguments(arguments: Sequence[str]) -> bytes:
    """Return the arguments as `--args` reads them: each closed by a NUL."""
    return b"".join(argument.encode() + b"\0" for argument in arguments)
