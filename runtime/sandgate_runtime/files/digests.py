"""The digest of a whole file: asked for, sent along, compared (RFC 9530).

Pure. Only sha-256 is known; a digest by another algorithm is passed over, as the RFC allows. The
fields are dictionaries of structured fields (RFC 8941 section 3.2), of which this reads what the
RFC lets stand in them.
"""

import base64
import binascii
import re

from sandgate_runtime.files.refusals import DigestMismatch, InvalidParameter

ALGORITHM = "sha-256"

_MEMBER = r"[ \t]*+([a-z*][a-z0-9_.*-]*+)=([^,]*+)"
_MEMBERS = re.compile(rf"(?:{_MEMBER})(?:,{_MEMBER})*+")
_EACH_MEMBER = re.compile(_MEMBER)
_BYTES = re.compile(r":([A-Za-z0-9+/]*+=*+):")
_PREFERENCE = re.compile(r"10|[0-9]")


def parse_digest(value: str | None) -> bytes | None:
    """Return the sha-256 of a Repr-Digest field, if it has one; raise InvalidParameter."""
    text = _parse_members(value, "Repr-Digest").get(ALGORITHM)
    if text is None:
        return None
    match = _BYTES.fullmatch(text)
    try:
        digest = base64.b64decode(match[1], validate=True) if match else b""
    except binascii.Error:
        digest = b""
    if len(digest) != 32:
        raise InvalidParameter(f"Repr-Digest {value!r} has no sha-256 of 32 bytes in base64")
    return digest


def is_wanted(value: str | None) -> bool:
    """Say whether a Want-Repr-Digest field asks for sha-256; raise InvalidParameter."""
    text = _parse_members(value, "Want-Repr-Digest").get(ALGORITHM)
    if text is None:
        return False
    if not _PREFERENCE.fullmatch(text):
        raise InvalidParameter(f"Want-Repr-Digest {value!r} has no preference from 0 to 10")
    return text != "0"


def build_digest(digest: bytes) -> str:
    """Return the value of the Repr-Digest field."""
    return f"{ALGORITHM}=:{base64.b64encode(digest).decode()}:"


def check_digest(expected: bytes | None, actual: bytes, *, path: str) -> None:
    """Raise DigestMismatch unless the content is the expected one."""
    if expected is not None and expected != actual:
        raise DigestMismatch(
            f"the content has Repr-Digest {build_digest(actual)}, "
            f"the request says {build_digest(expected)}",
            path=path,
        )


def _parse_members(value: str | None, field: str) -> dict[str, str]:
    if value is None:
        return {}
    if not _MEMBERS.fullmatch(value.strip()):
        raise InvalidParameter(f"{field} {value!r} is no dictionary of digests")
    return {name: text.strip() for name, text in _EACH_MEMBER.findall(value)}
