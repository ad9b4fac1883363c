"""An upload as `multipart/form-data` (RFC 7578), written by hand.

The part's filename is the destination in the sandbox, so any name must come through exactly.
httpx writes a quote as `%22` and a backslash unescaped, which most servers keep as they are; a
quoted-string (RFC 9110 section 5.6.4) is what they undo, and UTF-8 passes as it is.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO
from urllib.parse import quote

UPLOAD_CHUNK_BYTES = 256 * 1024
"""How much of a file is held while it is sent."""

_FORM_ESCAPE = re.compile("%(?:22|0A|0D)", re.IGNORECASE)
"""What browsers write for a quote and for ends of line (HTML, "multipart form data"), and some
servers undo. A name that holds one by itself is sent in the form of RFC 5987 as well, which
servers either prefer or ignore."""


@dataclass(frozen=True, slots=True)
class Upload:
    """The body of an upload: what is sent before the content, the content, and after it."""

    prologue: bytes
    content: BinaryIO
    epilogue: bytes

    def __iter__(self) -> Iterator[bytes]:
        """Yield the body, reading the content piece by piece from where it stands."""
        yield self.prologue
        while chunk := self.content.read(UPLOAD_CHUNK_BYTES):
            if not isinstance(chunk, bytes):
                raise TypeError("the file object gives text; open it in binary mode")
            yield chunk
        yield self.epilogue


def build_multipart(
    path: str, content: bytes | BinaryIO, *, boundary: str | None = None
) -> tuple[str, bytes | Upload]:
    """Return the content type and the body; raise ValueError for a path it cannot carry."""
    # 128 random bits: content that holds the boundary by chance does not happen.
    boundary = os.urandom(16).hex() if boundary is None else boundary
    prologue = (
        f"--{boundary}\r\n"
        f'content-disposition: form-data; name="file"; {build_filename(path)}\r\n'
        "content-type: application/octet-stream\r\n\r\n"
    ).encode()
    epilogue = f"\r\n--{boundary}--\r\n".encode()
    content_type = f"multipart/form-data; boundary={boundary}"
    if isinstance(content, bytes):
        return content_type, prologue + content + epilogue
    return content_type, Upload(prologue, content, epilogue)


def build_filename(path: str) -> str:
    """Return the parameter that carries `path`; raise ValueError for CR, LF and NUL."""
    if any(character in path for character in "\r\n\0"):
        raise ValueError(f"path {path!r} holds CR, LF or NUL, which an upload cannot carry")
    if path[1:3] == ":\\" or path[:2] == "\\\\":
        # Some servers cut what looks like a Windows path down to its last part.
        path = f"./{path}"
    quoted = path.replace("\\", "\\\\").replace('"', '\\"')
    parameter = f'filename="{quoted}"'
    if _FORM_ESCAPE.search(path):
        parameter += f"; filename*=utf-8''{quote(path, safe='')}"
    return parameter
