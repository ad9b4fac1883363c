"""The command line: `python -I -m sandgate_runtime`.

`-I` keeps the working directory, which belongs to the sandbox, out of the module search path.
"""

import argparse
import os
import signal
import socket
import sys
from collections.abc import Sequence

from sandgate_runtime import linux
from sandgate_runtime.config import BadSettings, Config
from sandgate_runtime.slim import defer_package

USAGE_ERROR = 2
"""Wrong arguments or settings; nothing was opened."""

CANNOT_SERVE = 1
"""The system refuses something: the address, or word of the parent's death."""


def main(argv: Sequence[str] | None = None) -> int:
    """Check everything, then serve; return the exit status."""
    options = _build_parser().parse_args(argv)
    faults: list[str] = []
    if options.die_with_parent is not None:
        _die_with_parent(options.die_with_parent)
    port = _parse_number(options.port, "--port", faults, maximum=65535)
    sockets = [
        _open_inherited(value, option, faults)
        for option, value in (("--fd", options.fd), ("--relay-fd", options.relay_fd))
    ]
    try:
        config = Config.from_environ(os.environ, root=options.root)
    except BadSettings as error:
        faults += error.faults
    if faults:
        for fault in faults:
            sys.stderr.write(f"sandgate runtime: {fault}\n")
        return USAGE_ERROR

    # Loaded only now: a wrong setting is told at once, and the parent's death is noticed early.
    defer_package("uvicorn", {"Config": "uvicorn.config", "Server": "uvicorn.server"})
    from sandgate_runtime.server import Listeners, listen, serve

    http, relay = sockets
    if http is None:
        try:
            http = listen(options.host, port)
        except OSError as error:
            sys.stderr.write(f"sandgate runtime: cannot listen: {error}\n")
            return CANNOT_SERVE
    return serve(config, Listeners(http, relay), environ=os.environ)


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sandgate runtime", description="The server inside a sandbox.", allow_abbrev=False
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", default="8888", help="port to listen on; 0 for any")
    parser.add_argument("--root", help="base directory (SANDBOX_BASE_DIR, else /app)")
    parser.add_argument("--fd", help="inherited listening unix socket, in place of host and port")
    parser.add_argument("--relay-fd", help="inherited listening unix socket of the port relay")
    parser.add_argument(
        "--die-with-parent",
        nargs="?",
        const="0",
        metavar="PID",
        help="end when the parent ends; with its PID, also if it has ended already",
    )
    return parser


def _die_with_parent(expected: str) -> None:
    """Have the kernel send SIGTERM when the parent ends; end now if it already has."""
    before = os.getppid()
    if not linux.signal_on_parent_death(signal.SIGTERM):
        sys.stderr.write("sandgate runtime: this kernel does not tell of a parent's death\n")
        sys.exit(CANNOT_SERVE)
    if os.getppid() != before or expected not in {"0", str(before)}:
        sys.exit(0)


def _parse_number(text: str, option: str, faults: list[str], *, maximum: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and int(text) <= maximum):
        faults.append(f"{option} {text!r} is not a number from 0 to {maximum}")
        return 0
    return int(text)


def _open_inherited(text: str | None, option: str, faults: list[str]) -> socket.socket | None:
    if text is None:
        return None
    number = _parse_number(text, option, faults, maximum=1 << 20)
    try:
        listener = socket.socket(fileno=number)
    except OSError as error:
        faults.append(f"{option} {text!r} is not a socket: {error.strerror}")
        return None
    listening = listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    if listener.family != socket.AF_UNIX or not listening:
        faults.append(f"{option} {text!r} is not a listening unix socket")
        listener.detach()
        return None
    # Commands must not inherit it.
    listener.set_inheritable(False)
    return listener


if __name__ == "__main__":
    sys.exit(main())
