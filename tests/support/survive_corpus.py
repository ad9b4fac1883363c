"""The requests that gunicorn tests its own parser with, read from its source distribution.

Its `.http` files write line ends as escapes; beside each lies a Python file with what the parser
is to make of it. Those are read as syntax trees and never run.
"""

import ast
import re
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROUTED = b"X-Sandbox-ID: sb\r\nAuthorization: Bearer secret\r\n"
"""What our gateway needs, put behind the request line."""


@dataclass(frozen=True)
class Expected:
    """One request as the corpus says it is to be read."""

    method: bytes
    target: bytes
    body: bytes | None
    """None where the corpus computes it."""


@dataclass(frozen=True)
class Case:
    """One file of the corpus."""

    name: str
    raw: bytes
    requests: list[Expected]
    """Empty where the file is to be refused."""


class CorpusUnavailable(Exception):
    """The package index does not answer."""


def fetch_corpus(folder: Path) -> tuple[list[Case], list[Case]]:
    """Return the good and the bad cases; raise CorpusUnavailable."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest"]
    command += [str(folder), "--no-binary", "gunicorn", "gunicorn"]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=60)
        archive = next(folder.glob("gunicorn-*.tar.gz"))
    except (subprocess.SubprocessError, StopIteration) as error:
        raise CorpusUnavailable(f"gunicorn's source distribution: {error}") from error
    with tarfile.open(archive) as files:
        files.extractall(folder, filter="data")
    requests = next(folder.glob("gunicorn-*/tests/requests"))
    good = [_read(path, good=True) for path in sorted((requests / "valid").glob("*.http"))]
    bad = [_read(path, good=False) for path in sorted((requests / "invalid").glob("*.http"))]
    return good, bad


def with_routing(case: Case) -> bytes:
    """Return the bytes of a case with routing fields, and a Host where there is none."""
    more = ROUTED
    if re.search(rb"\r\nhost[ \t]*:", case.raw, re.IGNORECASE) is None:
        more += b"Host: localhost\r\n"
    if not case.requests:
        # A lambda, since a replacement string would have its backslashes read.
        return re.sub(rb"\A(?:\r\n)*[^\r\n]*\r\n", lambda line: line[0] + more, case.raw, count=1)
    raw = case.raw
    for wanted in case.requests:
        line = re.escape(wanted.method + b" " + wanted.target) + rb" HTTP/1\.[01]\r\n"
        raw = re.sub(line, lambda found: found[0] + more, raw, count=1)
    return raw


def _read(path: Path, *, good: bool) -> Case:
    raw = path.read_bytes().replace(b"\n", b"").replace(b"\\r\\n", b"\r\n")
    raw = raw.replace(b"\\0", b"\0").replace(b"\\n", b"\n").replace(b"\\t", b"\t")
    raw = re.sub(rb"\\x([0-9A-Fa-f]{2})", lambda found: bytes([int(found[1], 16)]), raw)
    requests = _read_expected(path.with_suffix(".py")) if good else []
    return Case(path.stem, raw, requests)


def _read_expected(path: Path) -> list[Expected]:
    """Return the dicts with a method in the order in which the file has them."""
    found = []
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Dict):
            keys = [key.value for key in node.keys if isinstance(key, ast.Constant)]
            members = dict(zip(keys, node.values, strict=True))
            if "method" in members:
                found.append(_expected(members))
    return found


def _expected(members: Mapping[Any, ast.expr]) -> Expected:
    uri = members["uri"]
    assert isinstance(uri, ast.Call)
    try:
        body = ast.literal_eval(members["body"]) or b""  # some write an empty one as text
    except ValueError:
        body = None
    method, target = ast.literal_eval(members["method"]), ast.literal_eval(uri.args[0])
    return Expected(method.encode(), target.encode("latin-1"), body)
