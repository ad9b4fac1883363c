"""Scripts that are too long to be an argument.

Linux takes no argument above 131,071 bytes, and clients do send longer ones: whole files ride
inside `sh -c 'printf … | base64 -d > file'`. Such a script is handed to its shell in a file in
memory (memfd_create(2)): nothing has to be deleted, nothing is left by a crash. The shell is
told to read it with `.`, so `$0` and the parameters stay what they were. The command and its
children inherit the descriptor of the file, which is all that they can tell.
"""

import os
import posixpath
import re
from collections.abc import Sequence

from sandgate_runtime.errors import ArgumentTooLong
from sandgate_runtime.limits import MAX_ARGUMENT_BYTES, MAX_ARGUMENTS_BYTES

_SHELLS = frozenset({"sh", "ash", "bash", "dash", "ksh", "zsh"})
_OPTIONS_WITH_COMMAND = re.compile(r"-[A-Za-z]*c")
_LEAST_BYTES = 9
"""What even an empty argument takes: a pointer and a NUL."""

_OPTION = re.compile(r"[-+][A-Za-z]*")


def find_long_script(argv: Sequence[str]) -> int | None:
    """Return the position of a shell script that must go by file; None if all arguments fit.

    Raise ArgumentTooLong for a long argument that is anything else.
    """
    if len(argv) * _LEAST_BYTES > MAX_ARGUMENTS_BYTES:
        # Known without a look at a million words, which would hold everybody else up.
        raise ArgumentTooLong(f"{len(argv)} arguments are more than Linux takes")
    long = [index for index, value in enumerate(argv) if _is_too_long(value)]
    if not long:
        return None
    script = _script_position(argv)
    if long == [script]:
        return script
    raise ArgumentTooLong(
        f"argument {long[0]} is longer than {MAX_ARGUMENT_BYTES} bytes, the most that Linux takes; "
        "only the script of a shell's -c may be"
    )


def open_script(script: str) -> int:
    """Return a descriptor of a file in memory with this script; the caller closes it."""
    descriptor = os.memfd_create("script", os.MFD_CLOEXEC)
    try:
        content = memoryview(os.fsencode(script))
        while content:
            content = content[os.write(descriptor, content) :]
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_from(descriptor: int) -> str:
    """Return the short script that reads the long one, once the descriptor is inherited."""
    return f". /proc/self/fd/{descriptor}"


def _is_too_long(value: str) -> bool:
    # Counted in bytes only where characters leave it open: most commands are short.
    if len(value) * 4 <= MAX_ARGUMENT_BYTES:
        return False
    return len(os.fsencode(value)) > MAX_ARGUMENT_BYTES


def _script_position(argv: Sequence[str]) -> int | None:
    """Find the word after `-c` in `bash -euo pipefail -c <script>` and its like."""
    if posixpath.basename(argv[0]) not in _SHELLS:
        return None
    index = 1
    while index < len(argv) - 1 and _OPTION.fullmatch(argv[index]):
        if _OPTIONS_WITH_COMMAND.fullmatch(argv[index]):
            return index + 1
        index += 2 if argv[index].endswith("o") else 1
    return None
