"""How requests show that they may: what our gateway asks for, and what clients send.

The others ask for nothing and get the same requests. A capability is minted here as
docs/wire.md has it, so that the measurement needs nothing of what it measures.
"""

import base64
import hmac
import json
import time
from collections.abc import Mapping
from pathlib import Path

CAPABILITY = True
"""Whether our gateway asks for a capability of each sandbox, else for one shared token."""

ACCESS_LOG = "1/100"
"""Which requests our gateway logs: one of a hundred, as a busy one would be told."""

KID = "bench"
SECRET = b"a secret that guards nothing else"
SHARED_TOKEN = "bench-token-0123456789abcdef"

LIFE_SECONDS = 3600
"""Longest life that a gateway gives to a capability."""

SAME_SECONDS = 600
"""For so long all clients send the same ones, as a program does that holds a claim: the load
that is measured comes with those of its warm-up."""


def build_payload(sandbox: int, *, now: float) -> dict[str, object]:
    """Return what a capability says of the sandbox that `configs.sandgate` lists."""
    begins = int(now) // SAME_SECONDS * SAME_SECONDS
    return {
        "aud": "sandgate",
        "ns": "default",
        "cl": f"claim-{sandbox}",
        "sb": f"sb-{sandbox}",
        "uid": f"u-{sandbox}",
        "ports": None,
        "scp": ["http", "ws"],
        "nbf": begins,
        "exp": begins + LIFE_SECONDS,
    }


def sign(payload: Mapping[str, object], *, kid: str, secret: bytes) -> str:
    """Return a capability: the members in the order given, without white space."""
    content = json.dumps(payload, separators=(",", ":")).encode()
    signed = f"sg1.{kid}.{_encode(content)}"
    key = _derive_key(secret, str(payload["ns"]).encode())
    return f"{signed}.{_encode(hmac.digest(key, signed.encode(), 'sha256'))}"


def build_field(sandbox: int) -> bytes:
    """Return the field line that lets a request into a sandbox."""
    if CAPABILITY:
        token = sign(build_payload(sandbox, now=time.time()), kid=KID, secret=SECRET)
        return f"X-Sandbox-Token: {token}\r\n".encode()
    return f"Authorization: Bearer {SHARED_TOKEN}\r\n".encode()


def build_settings(folder: Path) -> dict[str, str]:
    """Return the settings of our gateway; what they point to is written into `folder`."""
    log = {"SANDGATE_ACCESS_LOG": ACCESS_LOG}
    if not CAPABILITY:
        return {"ROUTER_AUTH_TOKEN": SHARED_TOKEN, **log}
    keys = folder / "keys.yaml"
    secret = base64.b64encode(SECRET).decode()
    keys.write_text(f"keys:\n  - {{kid: {KID}, secret: {secret}, use: sign}}\n")
    keys.chmod(0o600)
    return {"SANDGATE_KEYS": str(keys), **log}


def describe() -> str:
    """Say for the report what our gateway does beside relaying."""
    asked = "a capability of each sandbox" if CAPABILITY else "a shared token"
    return f"{asked} checked, metrics counted, access log {ACCESS_LOG}"


def _derive_key(secret: bytes, namespace: bytes) -> bytes:
    """Derive the key of a namespace, by HKDF-SHA256 with an empty salt (RFC 5869, one block)."""
    extracted = hmac.digest(bytes(32), secret, "sha256")
    return hmac.digest(extracted, b"sandgate/capability/v1\0" + namespace + b"\1", "sha256")


def _encode(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()
