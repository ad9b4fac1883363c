"""What was resolved is opened without following links: a race is a change in between."""

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sandgate_runtime.errors import AccessDenied
from sandgate_runtime.files.listing import list_directory
from sandgate_runtime.files.opening import (
    descend,
    descend_by_name,
    exists,
    open_anchor,
    open_regular,
)
from sandgate_runtime.files.replacing import TEMPORARY_PREFIX, Replacement
from sandgate_runtime.files.syscalls import open_beneath
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


@pytest.mark.parametrize("step", [descend, descend_by_name])
@pytest.mark.parametrize(
    ("names", "number"),
    [
        (["d"], None),
        ([], None),
        (["d", "sub", "deep"], None),
        (["nosuch"], errno.ENOENT),
        (["d", "f"], errno.ENOTDIR),
        (["link"], errno.ENOTDIR),
        (["link", "x"], errno.ENOTDIR),
        (["d", "up"], errno.ENOTDIR),
    ],
)
def test_the_kernel_s_way_and_ours_lead_to_the_same(
    base: Path, step: Callable[[int, list[str]], int], names: list[str], number: int | None
) -> None:
    (base / "d" / "sub" / "deep").mkdir(parents=True)
    (base / "link").symlink_to(base.parent / "outside")
    (base / "d" / "up").symlink_to("..")
    with open_anchor(PathRules(str(base), isolated=False).resolve("")) as anchor:
        if number is not None:
            with pytest.raises(OSError, match=os.strerror(number)):
                step(anchor, names)
            return
        directory = step(anchor, names)
        assert os.fstat(directory).st_ino == base.joinpath(*names).stat().st_ino
        os.close(directory)


def test_the_kernel_opens_nothing_through_a_link_or_upwards(base: Path) -> None:
    (base / "link").symlink_to("d")
    (base / "proc").symlink_to("/proc/self/root")
    with open_anchor(PathRules(str(base), isolated=False).resolve("")) as anchor:
        descriptor = open_beneath(anchor, "d", os.O_PATH)
        if descriptor is None:
            pytest.skip("this kernel has no openat2")
        os.close(descriptor)
        for path in ("link", "link/f", "../outside", "d/../../outside", "/etc", "proc/etc"):
            assert open_beneath(anchor, path, os.O_PATH) is None


def test_a_file_that_a_command_made_meanwhile_is_not_replaced_by_who_wants_none(
    base: Path,
) -> None:
    place = PathRules(str(base), isolated=False).resolve("d/new")
    with Replacement(place) as replacement:
        replacement.write(b"upload")
        (base / "d" / "new").write_text("command")
        with pytest.raises(FileExistsError):
            replacement.rename(only_if_absent=True)
    assert (base / "d" / "new").read_text() == "command"
    assert sorted(os.listdir(base / "d")) == ["f", "new"]


def test_a_tree_deeper_than_descriptors_reach_is_removed(base: Path) -> None:
    script = """
import os, resource, sys
from sandgate_runtime.files.removing import remove
from sandgate_runtime.files.validators import Conditions
from sandgate_runtime.paths import PathRules
os.chdir(sys.argv[1])
for _ in range(300):
    os.mkdir("x")
    os.chdir("x")
os.chdir("/")
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
place = PathRules(sys.argv[1], isolated=False).resolve_entry("x")
remove(place, recursive=True, conditions=Conditions())
"""
    subprocess.run([sys.executable, "-c", script, str(base)], check=True)
    assert os.listdir(base) == ["d"]
