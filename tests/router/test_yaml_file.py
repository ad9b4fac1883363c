"""YAML files of settings: whatever is wrong names the file, and nothing of it is quoted."""

from pathlib import Path

import pytest

from sandgate_router.callers import load_callers
from sandgate_router.config import BadConfig
from sandgate_router.keys import load_keys
from sandgate_router.registry.local.pools import load_pools
from sandgate_router.yaml_file import read_yaml, shown

NO_SUCH_VALUE = [
    "a: 2026-11-31",
    "a: 2026-02-30T12:00:00Z",
    "a: 0b_",
    "a: 0x_",
    'a: !!int "hunter2"',
    'a: !!int ""',
    "a: !!float hunter2",
    "a: !!bool hunter2",
    "a: !!timestamp hunter2",
    "[2026-11-31]",
    "2026-11-31: a",
]
NO_YAML = [
    "{a: hunter2",
    'a: {API_KEY: "hunter2" x}',
    "hunter2: hunter2: hunter2",
    "*hunter2",
    "!hunter2 a",
    "!!python/object/apply:os.system [hunter2]",
    "? [hunter2] : b",
    "? {hunter2: b} : b",
    "a: \x00hunter2",
    '"hunter2 \\UFFFFFFFF"',
    "%YAML 1." + "9" * 5000 + "\n--- hunter2",
    "%hunter2",
    "\thunter2: [\n\t}",
]
TWICE = [
    "{a: hunter2, a: 2}",
    "a: hunter2\na: hunter3",
    "b: {c: [{hunter2: 1, hunter2: 2}]}",
    "1: a\n1: b",
    "<<: {a: 1}\n<<: {a: 2}",
]


def fault_of(path: Path, content: str | bytes) -> str:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(BadConfig) as caught:
        read_yaml(path, kind="keys")
    (fault,) = caught.value.faults
    assert fault.startswith(f"keys file {path}")
    assert "hunter" not in fault
    assert caught.value.__suppress_context__, "a traceback would quote it"
    return fault


@pytest.mark.parametrize("content", NO_SUCH_VALUE)
def test_a_value_that_cannot_be_is_told_with_its_place(tmp_path: Path, content: str) -> None:
    fault = fault_of(tmp_path / "x.yaml", "\n" + content)
    assert ", line 2, column " in fault
    assert fault.endswith(": a date, a number or the like that there is not; put text in quotes")


@pytest.mark.parametrize("content", NO_YAML)
def test_what_is_no_yaml_is_told_without_a_word_of_it(tmp_path: Path, content: str) -> None:
    assert "is no YAML" in fault_of(tmp_path / "x.yaml", content)


@pytest.mark.parametrize("content", TWICE)
def test_a_member_comes_once(tmp_path: Path, content: str) -> None:
    assert fault_of(tmp_path / "x.yaml", content).endswith(": a member comes twice")


@pytest.mark.parametrize("content", [b"\xff\xfehunter2", b"hunter2: \xc3\x28"])
def test_what_is_no_text_is_told(tmp_path: Path, content: bytes) -> None:
    fault = fault_of(tmp_path / "x.yaml", content)
    assert fault.endswith("cannot be read: it is no text in UTF-8")


def test_what_is_nested_too_deeply_is_told(tmp_path: Path) -> None:
    assert fault_of(tmp_path / "x.yaml", "[" * 100_000).endswith("is nested too deeply")


def test_a_file_that_is_not_there_is_named_with_the_reason(tmp_path: Path) -> None:
    for path, reason in (
        (tmp_path / "none.yaml", "No such file or directory"),
        (tmp_path, "Is a directory"),
    ):
        with pytest.raises(BadConfig, match=f"^pools file {path} cannot be read: {reason}$"):
            read_yaml(path, kind="pools")


def test_what_is_merged_in_may_be_overridden(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("a: &a {x: 1, y: 1}\nb: &b {<<: *a, x: 2}\nc: {<<: *b, x: 3}\nd: *b\n")
    inherited = {"x": 2, "y": 1}
    assert read_yaml(path, kind="pools") == {
        "a": {"x": 1, "y": 1},
        "b": inherited,
        "c": {"x": 3, "y": 1},
        "d": inherited,
    }


@pytest.mark.parametrize("load", [load_keys, load_callers, load_pools])
@pytest.mark.parametrize("content", [NO_SUCH_VALUE[0], NO_SUCH_VALUE[2], *NO_YAML[:2], TWICE[0]])
def test_every_such_file_is_read_so(tmp_path: Path, load: object, content: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(content)
    assert callable(load)
    with pytest.raises(BadConfig) as caught:
        load(path)
    (fault,) = caught.value.faults
    assert f" file {path}" in fault
    assert "hunter2" not in fault


@pytest.mark.parametrize("name", ["sha265", "API_KEY hunter", "secret hunter", 7, None, "a" * 33])
def test_the_name_of_a_member_that_may_be_a_secret_is_not_shown(name: object) -> None:
    assert shown(name) == "what is no plain word"


def test_a_slip_of_a_members_name_is_shown() -> None:
    assert shown("lease_secnods") == "'lease_secnods'"
