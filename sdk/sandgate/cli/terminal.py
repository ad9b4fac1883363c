"""The terminal that this program runs in, given to a process in a sandbox.

While it is, every key goes there, Ctrl-C included; what it was before it is again afterwards,
however the block ends.
"""

import os
import shutil
import signal
import sys
import termios
import threading
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from sandgate import Process, TerminalSize
from sandgate.errors import SandgateError

CHUNK_BYTES = 64 * 1024

END_OF_INPUT = b"\x04"
"""What a terminal takes for the end of its input (Ctrl-D)."""


class LocalTerminal:
    """This program's terminal, or its standard input where that is none."""

    def __init__(self, *, is_terminal: bool) -> None:
        self._is_terminal = is_terminal
        size = shutil.get_terminal_size()
        self.cols: int = size.columns
        self.rows: int = size.lines

    def attach(self, process: Process) -> None:
        """Pass keys and changes of the size on from now on."""
        pump_input(process, end=END_OF_INPUT)
        if self._is_terminal:
            signal.signal(signal.SIGWINCH, lambda *_: _spawn_resize(process))


@contextmanager
def local_terminal() -> Iterator[LocalTerminal]:
    """Give the terminal away for a block."""
    descriptor = sys.stdin.fileno()
    if not os.isatty(descriptor):
        yield LocalTerminal(is_terminal=False)
        return
    before = termios.tcgetattr(descriptor)
    tty.setraw(descriptor)
    try:
        yield LocalTerminal(is_terminal=True)
    finally:
        signal.signal(signal.SIGWINCH, signal.SIG_DFL)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def pump_input(process: Process, *, end: bytes | None = None) -> None:
    """Pass standard input on in the background; at its end send `end`, or end it there too."""
    threading.Thread(target=_pump, args=(process, end), daemon=True).start()


def _pump(process: Process, end: bytes | None) -> None:
    descriptor = sys.stdin.fileno()
    with suppress(SandgateError, OSError):  # the process has ended, and tells so itself
        while data := os.read(descriptor, CHUNK_BYTES):
            process.write_stdin(data)
        if end is None:
            process.close_stdin()
        else:
            process.write_stdin(end)


def _spawn_resize(process: Process) -> None:
    size = shutil.get_terminal_size()

    def resize() -> None:
        with suppress(SandgateError):
            process.resize(TerminalSize(size.columns, size.lines))

    # In a thread: a signal's handler must not wait for the network.
    threading.Thread(target=resize, daemon=True).start()
