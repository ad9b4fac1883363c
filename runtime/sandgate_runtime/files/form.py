"""Read one uploaded file out of a multipart/form-data body, as it arrives (RFC 7578).

The part named `file` counts, and its `filename` is the path to write to where the route names
none. Other parts are read over. What is in flight is bounded: a body of any size passes through
in the pieces in which it came, and the number of parts and the length of their heads are limited.
"""

import os
import re
from collections.abc import Callable, Iterator
from urllib.parse import unquote_to_bytes

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser

from sandgate_runtime.errors import MalformedForm

MAX_PARTS = 64
"""Clients send one. A part costs a few microseconds, a hundred thousand would hold the loop."""

MAX_PART_HEAD_BYTES = 16 * 1024
"""Longest header line of a part: a path of 4,095 bytes, encoded as `%XX`, still fits."""

_PARAMETER = re.compile(r";\s*+([A-Za-z0-9_*-]++)=(?:\"((?:[^\"\\]|\\.)*+)\"|([^;\"\s]*+))")
_QUOTED_PAIR = re.compile(r'\\([\\"])')
_FORM_ESCAPE = re.compile(r"%(22|0[DA])", re.IGNORECASE)


def parse_boundary(content_type: str) -> bytes:
    """Return the boundary of a multipart/form-data body; raise MalformedForm."""
    media_type, _, _ = content_type.partition(";")
    boundary = _parse_parameters(content_type).get("boundary")
    if media_type.strip().lower() != "multipart/form-data" or not boundary:
        raise MalformedForm("the body is not multipart/form-data with a boundary")
    return boundary.encode("latin-1", "replace")


class FileForm:
    """Takes the body in pieces; gives the file's path and content as far as they are known."""

    def __init__(self, boundary: bytes, *, named: bool = True) -> None:
        """Without `named` the part needs no filename, and one that it has means nothing."""
        self.path: str | None = None
        """The destination, empty if not `named`; None until the head of its part is in."""
        self._named = named
        self.field_without_file = False
        """Whether the part named `file` came as text, without a filename."""
        self._content: list[bytes] = []
        self._parts = 0
        self._field = self._value = b""
        self._disposition = ""
        self._wanted = False
        self._complete = False
        calls: dict[str, Callable[..., None]] = {
            "on_part_begin": self._on_part_begin,
            "on_header_field": self._on_header_field,
            "on_header_value": self._on_header_value,
            "on_header_end": self._on_header_end,
            "on_headers_finished": self._on_headers_finished,
            "on_part_data": self._on_part_data,
            "on_end": self._on_end,
        }
        try:
            self._parser = MultipartParser(
                boundary,
                calls,  # type: ignore[arg-type]
                max_header_size=MAX_PART_HEAD_BYTES,
            )
        except FormParserError as error:
            raise MalformedForm(str(error)) from error

    def feed(self, piece: bytes) -> None:
        """Take the next piece of the body."""
        try:
            self._parser.write(piece)
        except FormParserError as error:
            raise MalformedForm(f"the body is not multipart/form-data: {error}") from error

    def take(self) -> bytes:
        """Return the content that came since the last call."""
        content = b"".join(self._content)
        self._content.clear()
        return content

    @property
    def waiting(self) -> int:
        """How many bytes `take` would return."""
        return sum(map(len, self._content))

    def finish(self) -> None:
        """Say that the body has ended; raise MalformedForm if it ended too early."""
        if not self._complete:
            raise MalformedForm("the body ends before its last boundary")

    def _on_part_begin(self) -> None:
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise MalformedForm(f"the body has more than {MAX_PARTS} parts")
        self._disposition = ""
        self._wanted = False

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._field += data[start:end]

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _on_header_end(self) -> None:
        if self._field.lower() == b"content-disposition":
            self._disposition = os.fsdecode(self._value)
        self._field = self._value = b""

    def _on_headers_finished(self) -> None:
        parameters = _parse_parameters(self._disposition)
        if parameters.get("name") != "file":
            return
        path = _read_filename(parameters) if self._named else ""
        if path is None:
            self.field_without_file = True
            return
        if self.path is not None:
            raise MalformedForm("the body has two parts named 'file'")
        self.path = path
        self._wanted = True

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self._wanted:
            self._content.append(data[start:end])

    def _on_end(self) -> None:
        self._complete = True


def _parse_parameters(value: str) -> dict[str, str]:
    return dict(_iterate_parameters(value))


def _iterate_parameters(value: str) -> Iterator[tuple[str, str]]:
    for match in _PARAMETER.finditer(value):
        name, quoted, plain = match.groups()
        yield name.lower(), plain if quoted is None else _QUOTED_PAIR.sub(r"\1", quoted)


def _read_filename(parameters: dict[str, str]) -> str | None:
    """Return the path: not percent-decoded, but for what browsers and clients escape in forms.

    Those are the quote and the ends of line (HTML, "multipart form data"); a `%41` in a name
    stays as it is. `filename*` (RFC 5987), which old clients send, is encoded as a whole.
    """
    extended = parameters.get("filename*")
    if extended is not None and extended.lower().startswith("utf-8''"):
        return os.fsdecode(unquote_to_bytes(extended[len("utf-8''") :]))
    plain = parameters.get("filename")
    if plain is None:
        return None
    return _FORM_ESCAPE.sub(lambda match: chr(int(match[1], 16)), plain)
