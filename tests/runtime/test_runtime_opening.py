"""What was resolved is opened without following links: a race is a change in between."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from sandgate_runtime.errors import AccessDenied
from sandgate_runtime.files.listing import list_directory
from sandgate_runtime.files.opening import exists, open_regular
from sandgate_runtime.files.replacing import TEMPORARY_PREFIX, Replacement
from sandgate_runtime.paths import PathRules, Place


@pytest.fixture
def base(tmp_path: Path) -> Path:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "f").write_text("secret")
    directory = tmp_path / "base"
    (directory / "d").mkdir(parents=True)
    (directory / "d" / "f").write_text("public")
    return directory


def swap(base: Path, name: str, target: str) -> None:
    os.rename(base / name, base / "moved")
    os.symlink(base.parent / "outside" / target, base / name)


def write(place: Place) -> None:
    with Replacement(place) as replacement:
        replacement.write(b"x")
        replacement.commit()


@pytest.mark.parametrize("act", [open_regular, list_directory, write])
def test_a_directory_that_became_a_link_is_not_entered(
    base: Path, act: Callable[[Place], object]
) -> None:
    place = PathRules(str(base), isolated=False).resolve("d/f")
    swap(base, "d", "")
    with pytest.raises(NotADirectoryError):
        act(place)
    assert (base.parent / "outside" / "f").read_text() == "secret"
    assert exists(place) is False


@pytest.mark.parametrize("act", [open_regular, write])
def test_a_file_that_became_a_link_is_not_opened(
    base: Path, act: Callable[[Place], object]
) -> None:
    place = PathRules(str(base), isolated=False).resolve("d/f")
    swap(base / "d", "f", "../../outside/f")
    with pytest.raises(OSError, match="symbolic links"):
        act(place)
    assert (base.parent / "outside" / "f").read_text() == "secret"


def test_a_directory_that_became_a_link_while_writing_does_not_move_the_file(base: Path) -> None:
    place = PathRules(str(base), isolated=False).resolve("d/f")
    with Replacement(place) as replacement:
        replacement.write(b"new")
        swap(base, "d", "")
        replacement.commit()
    assert (base.parent / "outside" / "f").read_text() == "secret"
    assert (base / "moved" / "f").read_text() == "new"


def test_what_is_not_committed_leaves_no_trace(base: Path) -> None:
    place = PathRules(str(base), isolated=False).resolve("d/f")
    with Replacement(place) as replacement:
        replacement.write(b"new")
        assert any(name.startswith(TEMPORARY_PREFIX) for name in os.listdir(base / "d"))
    assert os.listdir(base / "d") == ["f"]
    assert (base / "d" / "f").read_text() == "public"


def test_a_device_is_never_opened() -> None:
    with pytest.raises(AccessDenied):
        open_regular(Place("/", ("dev", "null")))
