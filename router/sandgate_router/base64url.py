"""Unpadded base64url (RFC 4648 section 5), in its one canonical spelling.

Pure. The usual decoders skip characters outside the alphabet, take padding or leave it, and
ignore the bits that are left over at the end, so one value has many spellings. Here it has one.
"""

import binascii
import re

_ALPHABET = re.compile(rb"[A-Za-z0-9_-]*")
_TO_STANDARD = bytes.maketrans(b"-_", b"+/")
_FROM_STANDARD = bytes.maketrans(b"+/", b"-_")


def encode(data: bytes) -> bytes:
    """Return `data` as text without padding."""
    text = binascii.b2a_base64(data, newline=False)
    return text.translate(_FROM_STANDARD).rstrip(b"=")


def decode(text: bytes) -> bytes:
    """Return what `text` spells; raise ValueError unless `encode` writes it so."""
    if _ALPHABET.fullmatch(text) is None:
        raise ValueError("holds a character that is none of A-Z a-z 0-9 - _")
    try:
        data = binascii.a2b_base64(text.translate(_TO_STANDARD) + b"=" * (-len(text) % 4))
    except binascii.Error as error:
        raise ValueError("has a length that base64 never has") from error
    if encode(data) != text:
        raise ValueError("sets bits behind its end")
    return data
