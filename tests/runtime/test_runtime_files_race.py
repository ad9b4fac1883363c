"""Links that are swapped in while a path is being opened never lead out.

A process of its own exchanges a directory and a link to one outside as fast as the kernel
lets it, as hostile code would; every operation is tried against it. 100,000 rounds each with
SANDGATE_SOAK=1, and fewer otherwise.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.file_calls import build_tar, member

from sandgate_runtime.errors import Refusal
from sandgate_runtime.files.changing import make_directory, move
from sandgate_runtime.files.opening import descend_by_name, exists, open_anchor, open_regular
from sandgate_runtime.files.packing import Packing
from sandgate_runtime.files.pages import Query, list_page
from sandgate_runtime.files.removing import remove
from sandgate_runtime.files.replacing import Replacement
from sandgate_runtime.files.search_pages import search_page
from sandgate_runtime.files.unpacking import Unpacking
from sandgate_runtime.files.validators import Conditions
from sandgate_runtime.files.watching import TreeWatch
from sandgate_runtime.paths import PathRules

SOAK = os.environ.get("SANDGATE_SOAK") == "1"
ROUNDS = 100_000 if SOAK else 1_500

SWAPPER = """
import ctypes, os, sys
base = sys.argv[1].encode()
exchange = ctypes.CDLL(None).renameat2
print("ready", flush=True)
while os.getppid() == int(sys.argv[2]):
    for _ in range(1000):
        exchange(-100, base + b"/d", -100, base + b"/l", 2)  # RENAME_EXCHANGE
        exchange(-100, base + b"/p/f", -100, base + b"/p/l", 2)
"""


class Race:
    """A base directory in which `d` and `p/f` are now themselves and now links to outside."""

    def __init__(self, root: Path) -> None:
        self.outside = root / "outside"
        self.base = root / "base"
        (self.outside / "sub").mkdir(parents=True)
        (self.outside / "f").write_text("secret")
        (self.base / "d").mkdir(parents=True)
        (self.base / "d" / "f").write_text("public")
        (self.base / "l").symlink_to(self.outside)
        (self.base / "p").mkdir()
        (self.base / "p" / "f").write_text("public")
        (self.base / "p" / "l").symlink_to(self.outside / "f")
        self.rules = PathRules(str(self.base), isolated=False)

    def is_untouched(self) -> bool:
        """Say whether outside all is as it was."""
        return (
            sorted(os.listdir(self.outside)) == ["f", "sub"]
            and (self.outside / "f").read_text() == "secret"
            and os.listdir(self.outside / "sub") == []
        )


@pytest.fixture
def race(tmp_path: Path) -> Iterator[Race]:
    race = Race(tmp_path)
    command = [sys.executable, "-c", SWAPPER, str(race.base), str(os.getpid())]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as swapper:
        assert swapper.stdout is not None
        swapper.stdout.readline()
        yield race
        swapper.kill()


def read(race: Race, path: str) -> object:
    descriptor, _ = open_regular(race.rules.resolve(path))
    with open(descriptor, "rb") as file:
        return file.read()


def look(race: Race, path: str) -> object:
    return exists(race.rules.resolve(path))


def write(race: Race, path: str) -> object:
    with Replacement(race.rules.resolve(path)) as replacement:
        replacement.write(b"written")
        replacement.rename()
    return None


def enumerate_(race: Race, path: str) -> object:
    place = race.rules.resolve(path.partition("/")[0])
    return list_page(place, race.rules, Query(recursive=True))


def search(race: Race, path: str) -> object:
    place = race.rules.resolve(path.partition("/")[0])
    return search_page(place, race.rules, Query(recursive=True), b"secret")["matches"]


def delete(race: Race, path: str) -> object:
    name = f"{path.partition('/')[0]}/sub"
    remove(race.rules.resolve_entry(name), recursive=True, conditions=Conditions())
    return None


def make(race: Race, path: str) -> object:
    return make_directory(race.rules.resolve(f"{path}.new"), mode=0o700)


def rename(race: Race, path: str) -> object:
    folder = path.partition("/")[0]
    (race.base / "x").touch()
    move(race.rules.resolve_entry("x"), race.rules.resolve_entry(f"{folder}/x"), overwrite=True)
    return None


def pack(race: Race, path: str) -> object:
    packing = Packing(race.rules.resolve(path.partition("/")[0]))
    try:
        while packing.next_piece() is not None:
            pass
    finally:
        packing.close()
    return None


def unpack(race: Race, path: str) -> object:
    unpacking = Unpacking(race.rules.resolve(path.partition("/")[0]))
    try:
        unpacking.write(ARCHIVE)
        unpacking.commit()
    finally:
        unpacking.discard()
    return None


def watch(race: Race, path: str) -> object:
    TreeWatch(race.rules.resolve(path.partition("/")[0]), recursive=True).close()
    return None


ARCHIVE = build_tar([member("g", b"x"), member("sub/h", b"x")])


@pytest.mark.timeout(3600 if SOAK else 120)
@pytest.mark.parametrize(
    "act",
    [read, look, write, enumerate_, search, delete, make, rename, pack, unpack, watch],
    ids=lambda act: act.__name__,
)
def test_a_swap_between_any_two_steps_leads_nowhere(
    race: Race, act: Callable[[Race, str], object]
) -> None:
    outcomes = set()
    for number in range(ROUNDS):
        path = "p/f" if number % 2 else "d/f"
        try:
            result = act(race, path)
            outcomes.add("done")
            assert "secret" not in repr(result)
        except (OSError, Refusal) as error:
            outcomes.add(type(error).__name__)
        if number % 100 == 0:
            assert race.is_untouched()
    assert race.is_untouched()
    assert len(outcomes) > 1 or act is look, "the race never came about"


@pytest.mark.timeout(3600 if SOAK else 120)
def test_without_openat2_a_swap_leads_nowhere_either(race: Race) -> None:
    outside = os.stat(race.outside).st_ino
    place = race.rules.resolve("")
    inside = 0
    for _ in range(ROUNDS * 5):
        with open_anchor(place) as anchor, contextlib.suppress(OSError):
            directory = descend_by_name(anchor, ["d"])
            assert os.fstat(directory).st_ino != outside
            os.close(directory)
            inside += 1
    assert inside > 0
