"""The keys that capabilities are signed with: a YAML file, read again when it changes.

    keys:
      - {kid: k2, secret: <base64>, use: sign}
      - {kid: k1, secret: <base64>, use: verify}

Exactly one key signs; the others verify what was signed before. So a new key is brought in by
listing it as `verify` everywhere, then as `sign`, and an old one goes once its last token has
expired. Every fault of the file is listed at once, and none quotes a value: what stands
in the wrong place may be a secret. A file that
turns bad while the gateway runs is reported in the log and counted, and the last good keys
stay: a slip of an editor must not shut everybody out.
"""

import asyncio
import base64
import logging
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path

from sandgate_router.capability import MIN_SECRET_BYTES, KeySet, parse_kid
from sandgate_router.config import BadConfig
from sandgate_router.yaml_file import read_stamp, read_yaml, shown

log = logging.getLogger("sandgate.keys")

RELOAD_SECONDS = 1.0
"""How often the file is looked at, and so how long a key that was removed still counts."""

_MEMBERS = ("kid", "secret", "use")
_USES = ("sign", "verify")
_MAKE_ONE = "make one by: openssl rand -base64 32"


def build_own_keys() -> KeySet:
    """Return one key that nobody else has, for a gateway whose claims end with it."""
    return KeySet({"own": secrets.token_bytes(MIN_SECRET_BYTES)}, signing="own")


def load_keys(path: Path) -> KeySet:
    """Read the keys that a file lists.

    Raises:
        BadConfig: with every fault of the file.
    """
    content = read_yaml(path, kind="keys")
    try:
        return parse_keys(content)
    except BadConfig as error:
        raise BadConfig([f"keys file {path}: {fault}" for fault in error.faults]) from error


def parse_keys(content: object) -> KeySet:
    """Return the keys of a file's content; raise BadConfig with every fault."""
    if not isinstance(content, dict) or not isinstance(content.get("keys"), list):
        raise BadConfig(["it holds no list named `keys`"])
    faults = [
        f"{shown(key)} is no member of the file; it holds `keys`"
        for key in content
        if key != "keys"
    ]
    known: dict[str, bytes] = {}
    signing: list[str] = []
    for number, entry in enumerate(content["keys"], start=1):
        found = _Entry(entry)
        where = f"key {number}" + (f" ({found.kid})" if found.kid else "")
        faults.extend(f"{where}: {fault}" for fault in found.faults)
        if found.kid in known:
            faults.append(f"{where}: an earlier key has that kid")
        if found.use == "sign":
            signing.append(found.kid or f"number {number}")
        if found.kid is not None:
            known[found.kid] = found.secret
    if len(signing) != 1:
        named = f" and not {', '.join(signing)}" if signing else ", and none does"
        faults.append(f"exactly one key must have `use: sign`{named}")
    if faults:
        raise BadConfig(faults)
    return KeySet(known, signing=signing[0])


class _Entry:
    """One key of the file, as far as it is right."""

    def __init__(self, entry: object) -> None:
        self.kid: str | None = None
        self.secret = b""
        self.use = ""
        self.faults: list[str] = []
        if not isinstance(entry, dict):
            self.faults.append("is no mapping with kid, secret and use")
            return
        members: Mapping[object, object] = entry
        self.faults.extend(
            f"{shown(key)} is no member of a key; the members are kid, secret, use"
            for key in members
            if key not in _MEMBERS
        )
        self._take_kid(members.get("kid"))
        self._take_secret(members.get("secret"))
        self.use = self._take_use(members.get("use"))

    def _take_kid(self, kid: object) -> None:
        if not isinstance(kid, str):
            self.faults.append("kid is no text; put it in quotes")
            return
        try:
            self.kid = parse_kid(kid)
        except ValueError as error:
            self.faults.append(f"kid {error}")

    def _take_secret(self, secret: object) -> None:
        try:
            self.secret = base64.b64decode(
                secret if isinstance(secret, str) else "-", validate=True
            )
        except ValueError:  # and no word of it: what is no base64 may still be a secret
            self.faults.append(f"secret is no base64; {_MAKE_ONE}")
            return
        if len(self.secret) < MIN_SECRET_BYTES:
            self.faults.append(
                f"secret has {len(self.secret)} bytes, and {MIN_SECRET_BYTES} are the least;"
                f" {_MAKE_ONE}"
            )

    def _take_use(self, use: object) -> str:
        if use not in _USES:
            self.faults.append("use is none of sign, verify")
        return str(use)


class KeyFile:
    """Follows a file of keys."""

    def __init__(self, path: Path) -> None:
        """Read it for the first time; raise BadConfig."""
        self._path = path
        # Looked at before it is read, so a change in between is seen at the next look.
        self._stamp = read_stamp(path)
        self.keys = load_keys(path)
        self.failures = 0
        """How often it changed to something that cannot be used."""

    def __repr__(self) -> str:
        return f"<KeyFile {self._path.name} {len(self.keys.secrets)} keys>"

    def reload(self) -> bool:
        """Read the file again if it has changed; tell whether there are new keys."""
        stamp = read_stamp(self._path)
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        try:
            keys = load_keys(self._path)
        except BadConfig as error:
            self.failures += 1
            # The faults say it all; a traceback would only hide them.
            log.error("keys.kept", extra={"reason": "; ".join(error.faults)})  # noqa: TRY400
            return False
        changed, self.keys = keys != self.keys, keys
        if changed:
            log.info("keys.loaded", extra={"count": len(keys.secrets), "signing": keys.signing})
        return changed

    async def follow(
        self, replace: Callable[[KeySet], None], *, every: float = RELOAD_SECONDS
    ) -> None:
        """Look at the file `every` so many seconds and hand new keys on, until cancelled."""
        while True:
            await asyncio.sleep(every)
            try:
                if self.reload():
                    replace(self.keys)
            except Exception:
                # Whatever it was: with the next file, too, a key must be taken back in time.
                self.failures += 1
                log.exception("keys.kept")
