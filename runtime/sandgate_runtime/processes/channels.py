"""What a command's three standard streams are connected to: pipes, or one terminal.

In a terminal everything that is printed is standard output, and the session's leader, which the
command is, holds the terminal: it is hung up when the command ends (tty_ioctl(4)).
"""

import asyncio
import fcntl
import os
import struct
import subprocess
import termios
from collections.abc import Callable
from dataclasses import dataclass

from sandgate_runtime.processes.command import Command, TerminalSize
from sandgate_runtime.processes.ending import Stream
from sandgate_runtime.processes.pipes import OutputPipe
from sandgate_runtime.processes.stdin import CommandInput

OnOutput = Callable[[Stream, bytes], None]


@dataclass(frozen=True, slots=True)
class Channels:
    """Our ends, and those that the command inherits."""

    outputs: tuple[OutputPipe, ...]
    stdin: CommandInput | None
    inherited: tuple[int, int, int]
    """Descriptors of the command's standard streams; subprocess.DEVNULL for none."""
    master: int | None = None
    """The terminal's descriptor on our side; it belongs to the output."""

    @property
    def terminal(self) -> bool:
        """Whether the command runs in a terminal."""
        return self.master is not None

    def start(self) -> None:
        """Close what the command has inherited by now, and read."""
        self._close_inherited()
        for output in self.outputs:
            output.resume()

    def discard(self) -> None:
        """Close everything; for a command that did not start."""
        self._close_inherited()
        if self.stdin is not None:
            self.stdin.close()
        for output in self.outputs:
            output.discard()

    def resize(self, size: TerminalSize) -> None:
        """Set the terminal's size; the kernel tells its foreground programs (SIGWINCH)."""
        if self.master is not None:
            _set_size(self.master, size)

    def _close_inherited(self) -> None:
        for descriptor in set(self.inherited) - {subprocess.DEVNULL}:
            os.close(descriptor)


def open_channels(
    loop: asyncio.AbstractEventLoop, command: Command, on_output: OnOutput
) -> Channels:
    """Return new channels for a command, whose output goes to `on_output`; raise OSError."""
    if command.terminal is not None:
        return _open_terminal(loop, command.terminal, on_output)
    opened: list[int] = []
    try:
        for _ in range(2 if command.stdin is None else 3):
            opened += os.pipe2(os.O_CLOEXEC)
    except OSError:
        for descriptor in opened:
            os.close(descriptor)
        raise
    out, out_writer, err, err_writer, *rest = opened
    stdin = CommandInput(loop, rest[1]) if rest else None
    return Channels(
        outputs=(
            OutputPipe(loop, out, lambda content: on_output("stdout", content)),
            OutputPipe(loop, err, lambda content: on_output("stderr", content)),
        ),
        stdin=stdin,
        inherited=(rest[0] if rest else subprocess.DEVNULL, out_writer, err_writer),
    )


def take_terminal() -> None:
    """Make standard input the terminal of this session; for a child before it becomes the command.

    The child is the leader of a new session by then.
    """
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _open_terminal(
    loop: asyncio.AbstractEventLoop, size: TerminalSize, on_output: OnOutput
) -> Channels:
    master, slave = os.openpty()
    try:
        _set_size(slave, size)
        writer = fcntl.fcntl(master, fcntl.F_DUPFD_CLOEXEC, 0)
    except OSError:
        os.close(master)
        os.close(slave)
        raise
    return Channels(
        outputs=(OutputPipe(loop, master, lambda content: on_output("stdout", content)),),
        stdin=CommandInput(loop, writer, terminal=True),
        inherited=(slave, slave, slave),
        master=master,
    )


def _set_size(descriptor: int, size: TerminalSize) -> None:
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", size.rows, size.cols, 0, 0))
