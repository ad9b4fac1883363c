r"""Split a command line into words as a POSIX shell would, in linear time.

The result and the error texts are those of `shlex.split(text)`, which reads character by
character and appends to a growing string: 2 MB in one quoted word take it 200 seconds. Here a
word is a run of four kinds of pieces (POSIX.1-2017, Shell Command Language, section 2.2):

    plain   = any but white space, quotes and backslash
    'text'  = literal
    "text"  = backslash escapes itself and the quote, and is literal before anything else
    \c      = literal c

Nothing else of a shell is known: no variables, no globs, no comments, no operators.
"""

import re

_WHITE_SPACE = re.compile(r"[ \t\r\n]*+")
_PLAIN = re.compile(r"[^ \t\r\n'\"\\]++")
_SINGLE = re.compile(r"'([^']*+)'")
_DOUBLE = re.compile(r'"([^"\\]*+(?:\\.[^"\\]*+)*+)"', re.DOTALL)
_DOUBLE_ESCAPE = re.compile(r'\\([\\"])')
_OPEN_DOUBLE_AND_BACKSLASH = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+\\\Z', re.DOTALL)

_END_OF_WORD = " \t\r\n"


def split_words(text: str) -> list[str]:
    """Return the words of a command line; raise ValueError where a quote or escape is open."""
    words: list[str] = []
    position = _skip_white_space(text, 0)
    while position < len(text):
        word, position = _read_word(text, position)
        words.append(word)
        position = _skip_white_space(text, position)
    return words


def _skip_white_space(text: str, position: int) -> int:
    found = _WHITE_SPACE.match(text, position)
    return found.end() if found else position


def _read_word(text: str, position: int) -> tuple[str, int]:
    pieces: list[str] = []
    while position < len(text) and text[position] not in _END_OF_WORD:
        piece, position = _read_piece(text, position)
        pieces.append(piece)
    return "".join(pieces), position


def _read_piece(text: str, position: int) -> tuple[str, int]:
    first = text[position]
    if first == "'":
        if found := _SINGLE.match(text, position):
            return found[1], found.end()
        raise ValueError("No closing quotation")
    if first == '"':
        if found := _DOUBLE.match(text, position):
            return _DOUBLE_ESCAPE.sub(r"\1", found[1]), found.end()
        if _OPEN_DOUBLE_AND_BACKSLASH.match(text, position):
            raise ValueError("No escaped character")
        raise ValueError("No closing quotation")
    if first == "\\":
        if position + 1 == len(text):
            raise ValueError("No escaped character")
        return text[position + 1], position + 2
    found = _PLAIN.match(text, position)
    assert found is not None, "anything else is a plain character"
    return found[0], found.end()
