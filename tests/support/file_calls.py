"""Calls to `/v1/files`, spelled as clients spell them."""

import io
import os
import tarfile
from collections.abc import Sequence
from urllib.parse import quote

import httpx


def at(path: str, verb: str = "") -> str:
    """Return the target of a path: one segment, `/` encoded with the rest."""
    encoded = quote(os.fsencode(path), safe="")
    encoded = encoded.replace(".", "%2E") if path in {".", ".."} else encoded
    return f"/v1/files/{encoded}{verb}"


def reason(answer: httpx.Response) -> tuple[int, str]:
    """Return the status and the reason of a refusal."""
    return answer.status_code, answer.json()["reason"]


def names(answer: httpx.Response) -> list[str]:
    """Return the names of a listing or a search, in order."""
    assert answer.status_code == 200, answer.text
    body = answer.json()
    return [entry["name"] for entry in body.get("entries", body.get("matches"))]


def build_tar(
    members: Sequence[tuple[tarfile.TarInfo, bytes]],
    *,
    mode: str = "w:gz",
    tar_format: int = tarfile.PAX_FORMAT,
) -> bytes:
    """Return an archive as tarfile writes it."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode, format=tar_format) as archive:  # type: ignore[call-overload]
        for member, content in members:
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def member(
    name: str, content: bytes = b"", *, kind: bytes = tarfile.REGTYPE, mode: int = 0o644
) -> tuple[tarfile.TarInfo, bytes]:
    """Return a member for `build_tar`."""
    found = tarfile.TarInfo(name)
    found.type, found.mode, found.size, found.mtime = kind, mode, len(content), 1_000_000_000
    return found, content
