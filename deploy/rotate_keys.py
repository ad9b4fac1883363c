#!/usr/bin/env python3
"""Take the file of keys (SANDGATE_KEYS) through one step of a change of keys.

    rotate_keys.py first FILE    make it, with one key that signs
    rotate_keys.py add FILE      add a key that only verifies
    rotate_keys.py sign FILE     let the newest key sign, and the one before only verify
    rotate_keys.py drop FILE     remove the keys that only verify

Between two steps every gateway must have read the file: kubelets bring a changed Secret within
about two minutes. Before `drop`, an hour must have passed as well, the life of a token. Then no
gateway ever meets a token whose key it does not know. A step that would skip another is
refused, so that running one twice does no harm. The newest key stands first. Runs with what a
gateway runs with.
"""

import base64
import contextlib
import os
import secrets
import sys
import tempfile
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import yaml

SECRET_BYTES = 32
"""As long as the digest that is made with it (RFC 2104, section 3)."""

Key = dict[str, str]


class WrongStep(Exception):
    """The file is at another step, or is none."""


def first(path: Path) -> list[Key]:
    """Return one key, where there is no file yet."""
    if path.exists():
        raise WrongStep(f"{path} is there already: next is `add`")
    return [make_key("sign", taken=set())]


def add(keys: Sequence[Key]) -> list[Key]:
    """Return the keys with a new one that only verifies, at the head."""
    if keys[0]["use"] != "sign":
        raise WrongStep(f"the newest key, {keys[0]['kid']}, does not sign yet: next is `sign`")
    return [make_key("verify", taken={key["kid"] for key in keys}), *keys]


def sign(keys: Sequence[Key]) -> list[Key]:
    """Return the keys with the first of them signing, and no other."""
    if keys[0]["use"] == "sign":
        raise WrongStep(f"the newest key, {keys[0]['kid']}, signs already: next is `drop` or `add`")
    return [{**keys[0], "use": "sign"}, *({**key, "use": "verify"} for key in keys[1:])]


def drop(keys: Sequence[Key]) -> list[Key]:
    """Return the key that signs, alone."""
    if keys[0]["use"] != "sign":
        raise WrongStep(f"the newest key, {keys[0]['kid']}, does not sign yet: next is `sign`")
    return [keys[0]]


def make_key(use: str, *, taken: set[str]) -> Key:
    """Return a random key, named for the day."""
    day = datetime.now(UTC).strftime("%Y-%m-%d")
    names = (day if number == 1 else f"{day}-{number}" for number in range(1, len(taken) + 2))
    kid = next(name for name in names if name not in taken)
    secret = base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()
    return {"kid": kid, "secret": secret, "use": use}


def read(path: Path) -> list[Key]:
    """Return the keys of a file; raise WrongStep, without a word of what is in it."""
    try:
        keys = yaml.safe_load(path.read_text(encoding="utf-8"))["keys"]
        found = [{member: str(key[member]) for member in ("kid", "secret", "use")} for key in keys]
    except (OSError, UnicodeDecodeError) as error:
        raise WrongStep(f"{path} cannot be read: {error}; `first` makes one") from error
    except (yaml.YAMLError, KeyError, TypeError):
        raise WrongStep(f"{path} holds no list `keys` of kid, secret and use") from None
    if [key["use"] for key in found].count("sign") != 1:
        raise WrongStep(f"{path} does not have exactly one key with `use: sign`")
    return found


def write(path: Path, keys: Sequence[Key]) -> None:
    """Replace the file as a whole, readable by its owner alone."""
    text = yaml.safe_dump({"keys": list(keys)}, sort_keys=False)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


STEPS: dict[str, Callable[[Sequence[Key]], list[Key]]] = {"add": add, "sign": sign, "drop": drop}


def main(arguments: Sequence[str]) -> int:
    """Do one step; return the exit status."""
    if len(arguments) != 2 or arguments[0] not in {"first", *STEPS}:
        sys.stderr.write("usage: rotate_keys.py first|add|sign|drop FILE\n")
        return 2
    step, path = arguments[0], Path(arguments[1])
    try:
        keys = first(path) if step == "first" else STEPS[step](read(path))
    except WrongStep as error:
        sys.stderr.write(f"rotate_keys: {error}\n")
        return 1
    write(path, keys)
    for key in keys:
        sys.stdout.write(f"{key['kid']} {key['use']}s\n".replace("verifys", "verifies"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
