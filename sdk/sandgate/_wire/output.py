"""Gathers a command's output: the bytes for the result, and text for whoever watches.

One incremental decoder per stream, so that a character cut between two events arrives whole.
"""

import codecs
from collections.abc import Callable
from dataclasses import dataclass, field

from sandgate.errors import CommandTimeout
from sandgate.types import CommandResult, Exit, Output

Watcher = Callable[[str], object]
"""Gets a piece of text as soon as it is there; what it returns does not matter."""

_Decoder = codecs.getincrementaldecoder("utf-8")


@dataclass(slots=True)
class _Stream:
    data: bytearray = field(default_factory=bytearray)
    decoder: codecs.IncrementalDecoder = field(default_factory=lambda: _Decoder("replace"))


@dataclass(slots=True)
class CollectedOutput:
    """The output of one command so far."""

    _streams: dict[str, _Stream] = field(
        default_factory=lambda: {"stdout": _Stream(), "stderr": _Stream()}
    )

    def add(self, output: Output) -> str:
        """Keep a piece and return its text; an unfinished character waits for the next piece."""
        stream = self._streams[output.stream]
        stream.data += output.data
        return stream.decoder.decode(output.data)

    def rest(self, name: str) -> str:
        """Return what stands for a character that was never finished: U+FFFD, or nothing."""
        return self._streams[name].decoder.decode(b"", final=True)

    def result(self, exit_: Exit) -> CommandResult:
        """Return the whole result; raise CommandTimeout where the timeout ended the command."""
        stdout = bytes(self._streams["stdout"].data)
        stderr = bytes(self._streams["stderr"].data)
        if exit_.reason == "timeout":
            raise CommandTimeout(
                f"the command was killed by its timeout after {exit_.duration:.1f} s",
                stdout=stdout,
                stderr=stderr,
                duration=exit_.duration,
            )
        return CommandResult(
            stdout=stdout.decode(errors="replace"),
            stderr=stderr.decode(errors="replace"),
            exit_code=exit_.exit_code,
            reason=exit_.reason,
            duration=exit_.duration,
            truncated=exit_.truncated,
            signal=exit_.signal,
            stdout_bytes=stdout,
            stderr_bytes=stderr,
        )
