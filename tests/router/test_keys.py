"""The file of keys: every fault at once, no secret shown, and a slip never shuts anybody out."""

import asyncio
import base64
import logging
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from sandgate_router.capability import KeySet
from sandgate_router.config import BadConfig
from sandgate_router.keys import KeyFile, build_own_keys, load_keys, parse_keys

FIRST, SECOND = b"1" * 32, b"2" * 40


def text(secret: bytes) -> str:
    return base64.b64encode(secret).decode()


def key(kid: object = "k1", secret: object = text(FIRST), use: object = "sign") -> dict[str, Any]:
    return {"kid": kid, "secret": secret, "use": use}


def faults(content: object) -> tuple[str, ...]:
    with pytest.raises(BadConfig) as caught:
        parse_keys(content)
    return caught.value.faults


def write(path: Path, *keys: dict[str, Any]) -> None:
    """Put a file in the place of another, as editors and Kubernetes do."""
    fresh = path.with_suffix(".new")
    fresh.write_text(yaml.safe_dump({"keys": list(keys)}))
    os.replace(fresh, path)


def test_all_keys_verify_and_one_signs() -> None:
    keys = parse_keys({"keys": [key("old", use="verify"), key("new", text(SECOND))]})
    assert keys == KeySet({"old": FIRST, "new": SECOND}, signing="new")


MAKE_ONE = "make one by: openssl rand -base64 32"
BASE64 = f"key 1 (k1): secret is no base64; {MAKE_ONE}"
USE = "is none of sign, verify"
NONE_SIGNS = "exactly one key must have `use: sign`, and none does"


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (None, "it holds no list named `keys`"),
        ([], "it holds no list named `keys`"),
        ({}, "it holds no list named `keys`"),
        ({"keys": {}}, "it holds no list named `keys`"),
        ({"keys": []}, NONE_SIGNS),
        ({"keys": [key(use="verify")]}, NONE_SIGNS),
        (
            {"keys": [key("a"), key("b")]},
            "exactly one key must have `use: sign` and not a, b",
        ),
        ({"keys": [key()], "more": 1}, "'more' is no member of the file; it holds `keys`"),
        (
            {"keys": [key() | {"alg": "none"}]},
            "key 1 (k1): 'alg' is no member of a key; the members are kid, secret, use",
        ),
        (
            {"keys": [key(), key(use="verify")]},
            "key 2 (k1): an earlier key has that kid",
        ),
        ({"keys": [key(), 7]}, "key 2: is no mapping with kid, secret and use"),
        ({"keys": [key(kid=12)]}, "key 1: kid is no text; put it in quotes"),
        ({"keys": [key(kid=None)]}, "key 1: kid is no text; put it in quotes"),
        ({"keys": [key(kid="")]}, "key 1: kid is not 1 to 32 of A-Z a-z 0-9 _ -"),
        ({"keys": [key(kid="k.1")]}, "key 1: kid is not 1 to 32 of A-Z a-z 0-9 _ -"),
        ({"keys": [key(kid="k\n")]}, "key 1: kid is not 1 to 32 of A-Z a-z 0-9 _ -"),
        ({"keys": [key(kid="k" * 33)]}, "key 1: kid is not 1 to 32 of"),
        ({"keys": [key(secret=None)]}, BASE64),
        ({"keys": [key(secret=12345)]}, BASE64),
        ({"keys": [key(secret="hunter2!" * 8)]}, BASE64),
        ({"keys": [key(kid="hunter2!" * 8)]}, "key 1: kid is not 1 to 32 of"),
        ({"keys": [key(), key("k2", use="hunter2")]}, f"key 2 (k2): use {USE}"),
        ({"keys": [key() | {"secret hunter2": None}]}, "key 1 (k1): what is no plain word is no"),
        ({"keys": [key()], "hunter2": 1}, "what is no plain word is no member of the file"),
        ({"keys": [key(secret=text(FIRST) + "\n")]}, BASE64),
        ({"keys": [key(secret=text(FIRST).rstrip("="))]}, BASE64),
        (
            {"keys": [key(secret=text(b"1" * 31))]},
            f"key 1 (k1): secret has 31 bytes, and 32 are the least; {MAKE_ONE}",
        ),
        ({"keys": [key(), key("k2", use="SIGN")]}, f"key 2 (k2): use {USE}"),
        ({"keys": [key(), key("k2", use=True)]}, f"key 2 (k2): use {USE}"),
        ({"keys": [key(), key("k2", use=["sign"])]}, f"key 2 (k2): use {USE}"),
    ],
)
def test_what_cannot_be_used_is_told_and_no_secret_is(content: object, fault: str) -> None:
    found = faults(content)
    assert found[0].startswith(fault)
    assert len(found) == 1
    assert "hunter2" not in str(found)


def test_all_faults_are_listed_at_once() -> None:
    bad = {"keys": [key(kid=1, use="x"), key(secret="!"), 3, key("k1")], "x": 0}
    assert len(faults(bad)) == 7


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match=r"missing.yaml cannot be read"):
        load_keys(tmp_path / "missing.yaml")
    with pytest.raises(BadConfig, match="cannot be read"):
        load_keys(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        b"keys: [{kid: k, secret: hunter2hunter2",
        b"hunter2: hunter2: hunter2",
        b"keys: *hunter2",
        b"- !!python/object/apply:os.system [hunter2]",
        b"\x00hunter2",
    ],
)
def test_what_is_no_yaml_is_told_without_a_word_of_it(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "keys.yaml").write_bytes(content)
    with pytest.raises(BadConfig) as caught:
        load_keys(tmp_path / "keys.yaml")
    (fault,) = caught.value.faults
    assert "is no YAML" in fault
    assert "hunter2" not in fault
    assert caught.value.__suppress_context__


@pytest.mark.parametrize("content", [b"\xff\xfe\xff", b"[" * 100_000])
def test_other_rubbish_is_a_fault_of_the_file_and_not_of_the_gateway(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "keys.yaml").write_bytes(content)
    with pytest.raises(BadConfig):
        load_keys(tmp_path / "keys.yaml")


def test_a_fault_of_a_file_names_the_file(tmp_path: Path) -> None:
    write(tmp_path / "keys.yaml", key(use="verify"))
    with pytest.raises(BadConfig, match=r"keys file .*keys.yaml: exactly one key"):
        load_keys(tmp_path / "keys.yaml")


def test_a_file_is_read_again_only_when_it_has_changed(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    write(path, key())
    file = KeyFile(path)
    assert file.keys == KeySet({"k1": FIRST}, signing="k1")
    assert not file.reload()
    write(path, key("k2", text(SECOND)), key(use="verify"))
    assert file.reload()
    assert file.keys == KeySet({"k2": SECOND, "k1": FIRST}, signing="k2")
    assert not file.reload()
    write(path, key("k2", text(SECOND)), key(use="verify"))
    assert not file.reload(), "the same keys are no new ones"


MISTYPED = {
    "date": "keys: [hunter2]\nsince: 2026-11-31",
    "number": "keys: [hunter2]\nsince: 0b_",
    "key": "? [keys] : hunter2",
}
"""What PyYAML answers with other errors than its own."""


@pytest.mark.parametrize("breaking", ["write", "remove", "empty", "folder", *MISTYPED])
def test_a_file_that_turns_bad_keeps_the_old_keys_and_is_logged_and_counted_once(
    tmp_path: Path, breaking: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys.yaml"
    write(path, key())
    file = KeyFile(path)
    if breaking == "write":
        write(path, key(use="hunter3", secret="hunter2"))
    elif breaking in MISTYPED:
        fresh = path.with_suffix(".new")
        fresh.write_text(MISTYPED[breaking])
        os.replace(fresh, path)
    else:
        path.unlink()
    if breaking == "empty":
        path.touch()
    elif breaking == "folder":
        path.mkdir()
    with caplog.at_level(logging.INFO, logger="sandgate.keys"):
        assert not file.reload()
        assert not file.reload()
    assert file.keys == KeySet({"k1": FIRST}, signing="k1")
    assert file.failures == 1
    (record,) = caplog.records
    assert (record.levelname, record.getMessage()) == ("ERROR", "keys.kept")
    assert str(path) in vars(record)["reason"]
    assert "hunter2" not in str(vars(record))
    if breaking == "folder":
        path.rmdir()
    write(path, key("k2", text(SECOND)))
    assert file.reload()
    assert file.keys.signing == "k2"


async def test_whatever_fails_the_next_file_is_followed_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys.yaml"
    write(path, key())
    file = KeyFile(path)
    taken: list[str] = []

    def take(keys: KeySet) -> None:
        if keys.signing == "k2":
            raise ValueError("a slip of ours")
        taken.append(keys.signing)

    following = asyncio.get_running_loop().create_task(file.follow(take, every=0.001))
    async with asyncio.timeout(20):
        write(path, key("k2"))
        while not file.failures:
            await asyncio.sleep(0.001)
        write(path, key("k3"))
        while not taken:
            await asyncio.sleep(0.001)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    assert (taken, file.failures) == (["k3"], 1)
    assert [record.getMessage() for record in caplog.records] == ["keys.kept"]


def test_a_link_that_points_elsewhere_is_a_change(tmp_path: Path) -> None:
    # As the kubelet brings in a new version of a Secret, its time and size being the same.
    for name, secret in (("v1", FIRST), ("v2", b"3" * 32)):
        (tmp_path / name).mkdir()
        write(tmp_path / name / "keys.yaml", key(secret=text(secret)))
        os.utime(tmp_path / name / "keys.yaml", (1, 1))
    link = tmp_path / "data"
    link.symlink_to("v1")
    file = KeyFile(link / "keys.yaml")
    (tmp_path / "next").symlink_to("v2")
    os.replace(tmp_path / "next", link)
    assert file.reload()
    assert file.keys.secrets == {"k1": b"3" * 32}


def test_no_secret_is_in_a_repr(tmp_path: Path) -> None:
    write(tmp_path / "keys.yaml", key())
    file = KeyFile(tmp_path / "keys.yaml")
    assert repr(file) == "<KeyFile keys.yaml 1 keys>"
    assert repr(file.keys) == "KeySet(signing='k1')"


def test_a_key_of_one_s_own_is_never_the_same() -> None:
    one, other = build_own_keys(), build_own_keys()
    assert one.secrets[one.signing] != other.secrets[other.signing]
    assert len(one.secrets[one.signing]) == 32
