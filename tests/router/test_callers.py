"""The file of callers: what it may say, who is found by a token, and what a change does."""

import asyncio
import hashlib
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from sandgate_router.callers import Caller, CallerFile, load_callers, parse_callers
from sandgate_router.config import BadConfig, Config

DIGEST = hashlib.sha256(b"secret").hexdigest()
OTHER = hashlib.sha256(b"other").hexdigest()
CI = Caller(name="ci", namespaces=frozenset({"default"}), rights=frozenset({"claim"}))

WRONG_MEMBERS: list[tuple[dict[str, Any], str]] = [
    ({"name": ""}, "`name` '' is not 1 to 63 of"),
    ({"name": "a b"}, "`name` 'a b' is not 1 to 63 of"),
    ({"name": "a\n"}, "`name` 'a\\n' is not 1 to 63 of"),
    ({"name": "a" * 64}, "is not 1 to 63 of"),
    ({"name": 7}, "Expected `str`, got `int` - at `name`"),
    ({"sha256": DIGEST.upper()}, "`sha256` is not 64 lower-case hexadecimal digits"),
    ({"sha256": DIGEST[:-1]}, "`sha256` is not 64 lower-case hexadecimal digits"),
    ({"sha256": DIGEST + "\n"}, "`sha256` is not 64 lower-case hexadecimal digits"),
    ({"sha256": 10**63}, "Expected `str`, got `int` - at `sha256`"),
    ({"sha256": hashlib.sha256(b"").hexdigest()}, "`sha256` is that of an empty token"),
    ({"namespaces": []}, '`namespaces` is empty; give some, or ["*"] for all'),
    ({"namespaces": "default"}, "Expected `array`, got `str` - at `namespaces`"),
    ({"namespaces": ["*", "a"]}, '`namespaces` names "*" and others; give either'),
    ({"namespaces": ["team-*"]}, "`namespaces`: 'team-*' is not a label"),
    ({"namespaces": ["Team"]}, "`namespaces`: 'Team' is not a label"),
    ({"rights": []}, "`rights` is empty; give some of claim, read, admin"),
    ({"rights": ["write"]}, "Invalid enum value 'write' - at `rights[0]`"),
    ({"rights": "admin"}, "Expected `array`, got `str` - at `rights`"),
    ({"right": ["admin"]}, "'right' is no member of a caller; the members are name, sha256,"),
]


def entry(**members: Any) -> dict[str, Any]:
    return {
        "name": "ci",
        "sha256": DIGEST,
        "namespaces": ["default"],
        "rights": ["claim"],
    } | members


def faults_of(*entries: Any) -> tuple[str, ...]:
    with pytest.raises(BadConfig) as caught:
        parse_callers({"callers": list(entries)})
    return caught.value.faults


def write(path: Path, content: str, *, at: int) -> None:
    """Write a file of another time than the one before, whatever the clock's grain."""
    path.write_text(content)
    os.utime(path, ns=(at, at))


def text(name: str, token: str) -> str:
    digest = hashlib.sha256(token.encode()).hexdigest()
    return f"callers: [{{name: {name}, sha256: '{digest}', namespaces: [default], rights: [read]}}]"


def test_a_caller_is_found_by_its_token(tmp_path: Path) -> None:
    path = tmp_path / "callers.yaml"
    path.write_text(text("ci", "secret"))
    callers = CallerFile(path)
    assert callers.find(b"secret") == Caller("ci", frozenset({"default"}), frozenset({"read"}))
    for token in (b"", b"Secret", b"secret ", DIGEST.encode(), b"\xff"):
        assert callers.find(token) is None
    assert repr(callers) == "<CallerFile callers.yaml 1 tokens>"


def test_a_star_is_every_namespace() -> None:
    (anywhere,) = parse_callers({"callers": [entry(namespaces=["*"])]}).values()
    assert anywhere.namespaces is None


def test_a_caller_may_have_two_tokens_while_it_changes_them() -> None:
    callers = parse_callers({"callers": [entry(), entry(sha256=OTHER)]})
    assert callers == {DIGEST: CI, OTHER: CI}


def test_nobody_may_be_listed() -> None:
    assert parse_callers({"callers": []}) == {}


@pytest.mark.parametrize(("members", "fault"), WRONG_MEMBERS)
def test_a_wrong_member_is_told_with_its_caller(members: dict[str, Any], fault: str) -> None:
    (found,) = faults_of(entry(**members))
    named = members.get("name", "ci")
    where = f"caller 1 ({named}): " if isinstance(named, str) else "caller 1: "
    assert found.startswith(where)
    assert fault in found


@pytest.mark.parametrize("member", ["name", "sha256", "namespaces", "rights"])
def test_a_missing_member_is_told(member: str) -> None:
    lacking = entry()
    del lacking[member]
    (fault,) = faults_of(lacking)
    assert fault.endswith(f"`{member}` is missing")


@pytest.mark.parametrize("value", [None, [], "ci", 7])
def test_an_entry_is_a_mapping(value: object) -> None:
    assert faults_of(value) == ("caller 1: is no mapping",)


def test_every_fault_is_told_at_once() -> None:
    faults = faults_of(
        entry(rights=[], namespaces=[]),
        entry(name="b"),
        entry(sha256=OTHER, rights=["admin"]),
    )
    assert faults == (
        "caller 1 (ci): `rights` is empty; give some of claim, read, admin",
        'caller 1 (ci): `namespaces` is empty; give some, or ["*"] for all',
        "caller 2 (b): an earlier caller has the same sha256",
        "caller 3 (ci): an earlier caller of that name has other namespaces or rights",
    )


@pytest.mark.parametrize("content", [None, [], "callers", {}, {"callers": None}, {"callers": {}}])
def test_a_file_holds_a_list_of_callers(content: object) -> None:
    with pytest.raises(BadConfig, match="it holds no list named `callers`"):
        parse_callers(content)


def test_a_token_in_place_of_its_digest_is_never_quoted(tmp_path: Path) -> None:
    path = tmp_path / "callers.yaml"
    for line in ("sha256: hunter2", "sha256: [hunter2", "sha256: {hunter2: hunter2}"):
        path.write_text(f"callers:\n  - name: ci\n    {line}\n")
        with pytest.raises(BadConfig) as caught:
            load_callers(path)
        assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"callers: []\ncallers: []", ", line 2, column 1: a member comes twice"),
        (b"callers: [", ", line 1, column 11: it is no YAML there"),
        (b"callers: !!python/object:os.system []", ", line 1, column 10: it is no YAML there"),
        (b"\xff", "cannot be read: it is no text in UTF-8"),
        (b"? [callers] : b", ", line 1, column 3: it is no YAML there"),
        (b"callers: []\nx: 2026-11-31", ", line 2, column 4: a date, a number or the like that"),
        (b"callers: []\nx: 0b_", ", line 2, column 4: a date, a number or the like that"),
        (b"[" * 5000, "nested too deeply"),
        (b"callers: []\nkeys: []", "'keys' is no member of the file; it holds `callers`"),
    ],
)
def test_a_file_that_cannot_be_used_is_told_by_its_path(
    tmp_path: Path, content: bytes, fault: str
) -> None:
    path = tmp_path / "callers.yaml"
    path.write_bytes(content)
    with pytest.raises(BadConfig) as caught:
        CallerFile(path)
    (found,) = caught.value.faults
    assert found.startswith(f"callers file {path}")
    assert fault in found


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="cannot be read: No such file or directory"):
        CallerFile(tmp_path / "callers.yaml")


async def test_a_changed_file_counts_and_a_broken_one_keeps_the_old_callers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("sandgate_router.callers.RELOAD_SECONDS", 0.001)
    caplog.set_level(logging.INFO)
    path = tmp_path / "callers.yaml"
    write(path, text("ci", "first"), at=1)
    callers = CallerFile(path)

    async def logged(message: str) -> logging.LogRecord:
        async with asyncio.timeout(10):
            while not (found := [r for r in caplog.records if r.message == message]):
                await asyncio.sleep(0.001)
        caplog.clear()
        return found[-1]

    async with callers.following():
        write(path, text("ci", "second"), at=2)
        assert vars(await logged("callers.read"))["tokens"] == 1
        assert callers.find(b"first") is None
        assert callers.find(b"second") is not None

        write(path, "callers: [", at=3)
        kept = await logged("callers.kept")
        assert kept.levelno == logging.ERROR
        assert f"callers file {path}, line 1, " in vars(kept)["reason"]
        assert callers.find(b"second") is not None

        for number, slip in enumerate(("? [a] : b", "x: 2026-11-31", "x: 0b_")):
            write(path, slip, at=5 + number)
            assert f"callers file {path}, line 1, " in vars(await logged("callers.kept"))["reason"]
        assert callers.find(b"second") is not None
        assert callers.failures == 4

        path.unlink()
        assert "No such file" in vars(await logged("callers.kept"))["reason"]
        assert callers.find(b"second") is not None

        write(path, text("ci", "third"), at=4)
        await logged("callers.read")
        assert (callers.find(b"second"), callers.find(b"third") is not None) == (None, True)
    assert len(asyncio.all_tasks()) == 1


async def test_whatever_fails_the_next_file_is_followed_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("sandgate_router.callers.RELOAD_SECONDS", 0.001)
    path = tmp_path / "callers.yaml"
    write(path, text("ci", "first"), at=1)
    callers = CallerFile(path)

    def fail(path: Path) -> None:
        raise ValueError(f"a slip of ours at {path.name}")

    async with callers.following(), asyncio.timeout(20):
        with monkeypatch.context() as broken:
            broken.setattr("sandgate_router.callers.load_callers", fail)
            write(path, text("ci", "second"), at=2)
            while not callers.failures:
                await asyncio.sleep(0.001)
        assert callers.find(b"first") is not None
        write(path, text("ci", "third"), at=3)
        while callers.find(b"third") is None:
            await asyncio.sleep(0.001)
    assert callers.find(b"first") is None
    assert "callers.kept" in [record.message for record in caplog.records]


def test_the_setting_names_the_file() -> None:
    environ = {"SANDGATE_CALLERS": "/etc/callers.yaml"}
    assert Config.from_environ(environ, command="up").callers == Path("/etc/callers.yaml")
    assert Config.from_environ({}, command="up").callers is None
