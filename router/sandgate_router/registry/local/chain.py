"""The programs that stand between the gateway and bubblewrap, so that it dies with us. Pure.

bubblewrap's own init asks to die with its parent only at the end of its set-up: of 80 gateways
that were killed while they started sandboxes, one or two left a process behind. So all of it
runs in one more process namespace, whose first process has asked for that before anything
else exists. The kernel ends a namespace with its first process, whatever state the rest is in.
"""

from collections.abc import Sequence

# The death signal is asked for first and the parent looked at after: were it the other way
# round, a gateway that died in between would be missed.
_PARENT_LIVES = '[ "$PPID" = "$0" ] && exec "$@"'

# In the new namespace the parent has no number. But the output is a pipe that only the gateway
# reads: writing to it fails, and ends this, if the gateway is gone.
_READER_LIVES = 'echo && exec "$0" "$@"'

# The namespace's first process stays who it is: the kernel forgets the death signal of one that
# changes its user, and a gateway that died before it was asked for again left a sandbox behind.
# It looks twice, since another child of the gateway holds that pipe too until it is itself.
_FIRST_PROCESS = 'echo && { "$0" "$@" & echo && wait "$!"; }'

_DIE_WITH_PARENT = ("setpriv", "--pdeathsig", "KILL")


def build_chain(
    *,
    gateway: int,
    enter: Sequence[str],
    own_uid: int | None,
    enclosed: bool,
    bwrap: str,
    descriptors: int | None = None,
) -> list[str]:
    """Return the command that bubblewrap's arguments are appended to.

    Args:
        gateway: the number of the process that starts it.
        enter: what puts the rest into the staged view of the file system; may be empty.
        own_uid: the user to become; None stays the one it is.
        enclosed: whether to use the additional process namespace.
        descriptors: the soft limit on open files; None leaves it as it is.
    """
    command = [*enter, *_DIE_WITH_PARENT, "--", "/bin/sh", "-c", _PARENT_LIVES, str(gateway)]
    if descriptors is not None:
        command += ["prlimit", f"--nofile={descriptors}:", "--"]
    if enclosed:
        # Making a process namespace takes root, or a user namespace to be root of.
        user = [] if own_uid is not None else ["--user", "--map-current-user"]
        command += ["unshare", *user, "--pid", "--fork", "--kill-child=KILL", "--"]
        command += ["/bin/sh", "-c", _FIRST_PROCESS]
    # Asked for once more: the kernel forgets it when the user changes.
    command += _DIE_WITH_PARENT
    if own_uid is not None:
        command += ["--reuid", str(own_uid), "--regid", str(own_uid), "--clear-groups"]
    command.append("--")
    return [*command, bwrap] if enclosed else [*command, "/bin/sh", "-c", _READER_LIVES, bwrap]
