"""Forks sandboxes off a process that has imported the runtime. Run by `zygote`, never imported.

What is forked is made a child of the gateway and not of this process (CLONE_PARENT): the gateway
waits for it and the kernel ends it with the gateway, as if the gateway had started it; and where
this process dies, nothing else does. Python has no name for that call, so it is made as
`os.fork()` makes its own. There is one thread here, so no lock is held while it is made.

Nothing of the gateway is here: it was started as a program of its own, with the variables of a
sandbox and one socket. What sandboxes share is what they imported, and with it the seed of
Python's hashes and the places of things in memory.

A request is a JSON object with three descriptors beside it: the socket to serve, where to write,
and a pipe. The answer is an object with `pid` or `error`. A fork begins when it reads a byte from
the pipe, and ends when it cannot. The end of the socket ends this process.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

MAX_REQUEST_BYTES = 1 << 20
"""More than the kernel lets through in one message."""

_CLONE_SYSCALL = {"x86_64": 56, "aarch64": 220, "riscv64": 220}
_CLONE_PARENT = 0x00008000
_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_NAME = 15

OWN_NAME, FORK_NAME = b"sandgate-zygote", b"sandbox-runtime"
"""What `ps` and `top` show, 15 bytes at most: both have the command line of the first."""

# PyDLL keeps the interpreter's lock, which the child must hold.
_libc = ctypes.PyDLL(None, use_errno=True)
_python = ctypes.pythonapi


def main(control: socket.socket, gateway: int, program: str, modules: Sequence[str]) -> int:
    """Serve requests until the gateway is gone; return the exit code of what was forked."""
    _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    _libc.prctl(_PR_SET_NAME, OWN_NAME, 0, 0, 0)
    if os.getppid() != gateway:
        return 0
    number = _CLONE_SYSCALL[os.uname().machine]
    run: Callable[[list[str]], int] = importlib.import_module(program).main
    for module in modules:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # a collection in a child would write to, and so copy, every page
    while True:
        content, fds, _, _ = socket.recv_fds(control, MAX_REQUEST_BYTES, 3, socket.MSG_CMSG_CLOEXEC)
        if not content:
            return 0
        request: dict[str, Any] = json.loads(content)
        pid = _fork_sibling(number)
        if pid == 0:
            listener, output, go = fds
            if not os.read(go, 1):
                return 0
            become(request, listener, output)
            return run(request["argv"])
        for fd in fds:
            os.close(fd)
        answer = {"pid": pid} if pid > 0 else {"error": os.strerror(ctypes.get_errno())}
        control.send(json.dumps(answer).encode())


def become(request: dict[str, Any], listener: int, output: int) -> None:
    """Turn a fork into what the request describes."""
    os.setsid()
    _libc.prctl(_PR_SET_NAME, FORK_NAME, 0, 0, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    for name in os.listdir("/proc/self/fd"):
        if (fd := int(name)) > 2 and fd != listener:
            with contextlib.suppress(OSError):  # the one by which the folder was read
                os.close(fd)
    # Limits first: who has become another user may not raise them.
    if (descriptors := request["descriptors"]) is not None:
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, most))
    size = request["file_bytes"]
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    if (uid := request["uid"]) is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        # As after an exec: its own /proc belongs to it, and by that the gateway finds it.
        _libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)
    os.environ.clear()
    os.environ.update(request["environ"])
    time.tzset()
    request["argv"] += ["--fd", str(listener)]


def _fork_sibling(number: int) -> int:
    """Fork a child of our parent: return its number, 0 in it, or -1 with errno set."""
    _python.PyOS_BeforeFork()
    pid = int(_libc.syscall(number, _CLONE_PARENT | int(signal.SIGCHLD), 0, 0, 0, 0))
    if pid == 0:
        _python.PyOS_AfterFork_Child()
    else:
        _python.PyOS_AfterFork_Parent()
    return pid


if __name__ == "__main__":
    fd, parent, *words = sys.argv[1:]
    sys.exit(main(socket.socket(fileno=int(fd)), int(parent), words[0], words[1:]))
