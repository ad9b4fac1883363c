"""A view of the file system in which another user reaches what lies in root's folders.

A sandbox that root starts runs as an unprivileged user, and bubblewrap binds only what that
user can reach; a Python below /root (mode 0700) is not. So root makes one mount namespace, in
which /tmp holds nothing but binds of the needed folders, and every start enters it: 1 ms
each, against four `mount` calls per sandbox. The gateway holds it by a descriptor alone, so
it ends with the gateway, and the machine's own mounts never change.
"""

import asyncio
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from sandgate_router.registry.local.unavailable import IsolationUnavailable, explain

STAGE = "/tmp"  # noqa: S108 - the one folder that every system has, everyone reaches, and nothing here needs

_SCRIPT = """
set -e
stage=$1; shift
mount -t tmpfs -o mode=0755,size=64k sandgate "$stage"
number=0
for source in "$@"; do
    mkdir "$stage/$number"
    mount --bind "$source" "$stage/$number"
    number=$((number + 1))
done
mount --move "$stage" "$0"
echo ready
read -r end || true
"""


class Staging:
    """The mount namespace, and where in it each folder is reached."""

    def __init__(self, namespace: int, sources: Sequence[str]) -> None:
        self._namespace = namespace
        self.sources = {source: f"{STAGE}/{number}" for number, source in enumerate(sources)}

    @classmethod
    async def create(cls, folder: Path, sources: Sequence[str]) -> "Staging":
        """Make the namespace from folders, through the empty `folder`.

        Raises:
            IsolationUnavailable: this root may not mount.
        """
        return cls(await asyncio.to_thread(_make_namespace, folder, sources), sources)

    def command(self) -> list[str]:
        """Return the command that enters the namespace and goes on with what follows."""
        # By the gateway's own table of descriptors: one that is passed on would stay open
        # in the sandbox and be a door to the machine's files.
        return ["nsenter", f"--mount=/proc/{os.getpid()}/fd/{self._namespace}", "--"]

    def close(self) -> None:
        """Let the namespace go; what runs in it keeps it."""
        os.close(self._namespace)


def _make_namespace(folder: Path, sources: Sequence[str]) -> int:
    """Return a descriptor of the new mount namespace."""
    process = subprocess.Popen(
        [
            *("unshare", "--mount", "--propagation", "slave", "--"),
            *("/bin/sh", "-c", _SCRIPT, STAGE, str(folder), *sources),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is the gateway's to handle
    )
    assert process.stdout is not None
    namespace = None
    try:
        if process.stdout.readline() == b"ready\n":
            namespace = os.open(f"/proc/{process.pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        _, words = process.communicate()  # closes its input, which ends the script
    if namespace is None:
        raise IsolationUnavailable(explain(words.decode(errors="replace"), settings={}))
    return namespace
