"""What a path means, with and without a file system of one's own."""

from pathlib import Path

import pytest

from sandgate_runtime.errors import AccessDenied, BadPath
from sandgate_runtime.paths import PathRules, decode_path


@pytest.fixture
def base(tmp_path: Path) -> Path:
    directory = tmp_path / "home" / "user"
    directory.mkdir(parents=True)
    return directory


@pytest.mark.parametrize(
    ("raw", "path"),
    [
        (b"/download/a%2Fb.txt", "a/b.txt"),
        (b"/download/a/b.txt", "a/b.txt"),
        (b"/download/%252e%252e", "%2e%2e"),
        (b"/download/%2Fetc%2Fpasswd", "/etc/passwd"),
        (b"/download//etc/passwd", "/etc/passwd"),
        (b"/download/%C3%A4%0A", "ä\n"),
        (b"/download/%FF", "\udcff"),
        (b"/download/100%", "100%"),
        (b"/download/", ""),
    ],
)
def test_a_path_is_percent_decoded_exactly_once(raw: bytes, path: str) -> None:
    assert decode_path(raw, b"/download/") == path


def test_a_route_that_is_spelled_encoded_is_refused() -> None:
    with pytest.raises(BadPath):
        decode_path(b"/download%2Fx", b"/download/")


@pytest.mark.parametrize("path", ["a/b", "/a/b", "//a//b", "a/./b", "x/../a/b"])
def test_un_isolated_every_path_starts_at_the_base_directory(base: Path, path: str) -> None:
    place = PathRules(str(base), isolated=False).resolve(path)
    assert place.path == str(base / "a" / "b")
    assert place.anchor == str(base)


@pytest.mark.parametrize("path", ["..", "../x", "a/../../x", "/../x", "../user2"])
def test_un_isolated_nothing_outside_the_base_directory_is_reached(base: Path, path: str) -> None:
    (base.parent / "user2").mkdir()
    with pytest.raises(AccessDenied, match="Access denied"):
        PathRules(str(base), isolated=False).resolve(path)


@pytest.mark.parametrize("target", ["/etc", "../..", "/proc/self/root"])
def test_un_isolated_a_link_that_leads_out_is_refused(base: Path, target: str) -> None:
    (base / "out").symlink_to(target)
    with pytest.raises(AccessDenied):
        PathRules(str(base), isolated=False).resolve("out/passwd")


@pytest.mark.parametrize("path", ["..\\x", "%2e%2e/x", "...", "a b/\u00e4", "x" * 255, "-rf", "*"])
def test_names_that_only_look_dangerous_are_ordinary(base: Path, path: str) -> None:
    assert PathRules(str(base), isolated=False).resolve(path).path == str(base / path)


@pytest.mark.parametrize("path", ["a\0b", "x" * 256, "a/" * 2100, "\ud800"])
def test_what_no_file_system_takes_is_a_bad_path(base: Path, path: str) -> None:
    with pytest.raises(BadPath):
        PathRules(str(base), isolated=False).resolve(path)


def test_isolated_an_absolute_path_means_itself_and_a_relative_one_starts_at_the_base(
    base: Path,
) -> None:
    rules = PathRules(str(base), isolated=True)
    assert rules.resolve("/etc/hostname").path == "/etc/hostname"
    assert rules.resolve("run.py").path == str(base / "run.py")
    assert rules.resolve("../x").path == str(base.parent / "x")


def restored(base: Path, path: str, *, writing: bool, isolated: bool = True) -> str:
    return PathRules(str(base), isolated=isolated).resolve_legacy(path, writing=writing).path


@pytest.mark.parametrize("writing", [True, False])
def test_a_path_to_the_base_directory_that_lost_its_slash_is_understood(
    base: Path, writing: bool
) -> None:
    stripped = str(base).lstrip("/") + "/run.py"
    assert restored(base, stripped, writing=writing) == str(base / "run.py")


def test_a_path_below_tmp_that_lost_its_slash_is_understood(base: Path) -> None:
    assert restored(base, "tmp/x.csv", writing=True) == "/tmp/x.csv"


@pytest.mark.parametrize("path", ["lib/x.py", "etc/x.conf", "src/x", "usr/bin/x", "x"])
def test_a_project_s_own_folders_are_written_below_the_base_directory(
    base: Path, path: str
) -> None:
    assert restored(base, path, writing=True) == str(base / path)


def test_a_project_s_own_tmp_folder_wins_over_the_system_s(base: Path) -> None:
    (base / "tmp").mkdir()
    assert restored(base, "tmp/x.csv", writing=True) == str(base / "tmp/x.csv")


def test_what_exists_below_the_base_directory_wins_when_reading(base: Path) -> None:
    (base / "etc").mkdir()
    (base / "etc" / "passwd").write_text("mine")
    assert restored(base, "etc/passwd", writing=False) == str(base / "etc/passwd")


def test_an_absolute_path_that_lost_its_slash_can_be_read(base: Path) -> None:
    assert restored(base, "etc/passwd", writing=False) == "/etc/passwd"


def test_un_isolated_no_slash_is_ever_restored(base: Path) -> None:
    assert restored(base, "etc/passwd", writing=False, isolated=False) == str(base / "etc/passwd")


def test_only_the_legacy_routes_restore_slashes(base: Path) -> None:
    assert PathRules(str(base), isolated=True).resolve("tmp/x").path == str(base / "tmp/x")


def test_un_isolated_an_absolute_path_below_the_base_means_itself(base: Path) -> None:
    rules = PathRules(str(base), isolated=False)
    assert rules.resolve(str(base / "run.py")).path == str(base / "run.py")
    assert rules.resolve(f"{base}/x/../run.py").path == str(base / "run.py")
    assert rules.resolve(str(base)).path == str(base)
    assert rules.resolve(f"{base}2/x").path == f"{base}{base}2/x"
    assert rules.resolve(f"{base}/../x").path == str(base) + str(base.parent / "x")


def test_the_legacy_routes_re_root_every_absolute_path(base: Path) -> None:
    place = PathRules(str(base), isolated=False).resolve_legacy(str(base / "x"), writing=True)
    assert place.path == str(base) + str(base / "x")


def test_an_entry_is_the_link_itself(base: Path) -> None:
    (base / "d").mkdir()
    (base / "l").symlink_to("/etc")
    (base / "m").symlink_to("d")
    rules = PathRules(str(base), isolated=False)
    assert rules.resolve_entry("l").path == str(base / "l")
    assert rules.resolve_entry("m/").path == str(base / "m")
    assert rules.resolve_entry("m/x").path == str(base / "d" / "x")
    assert rules.resolve_entry("").path == str(base)
    assert rules.resolve_entry("d/.").path == str(base / "d")
    for path in ("l/passwd", "..", "d/../.."):
        with pytest.raises(AccessDenied):
            rules.resolve_entry(path)


@pytest.mark.parametrize("isolated", [True, False])
def test_a_place_is_spelled_as_a_client_reaches_it(base: Path, isolated: bool) -> None:
    rules = PathRules(str(base), isolated=isolated)
    for path in ("a/b", ""):
        place = rules.resolve(path)
        assert rules.resolve(rules.spell(place)) == place
    assert rules.spell(rules.resolve("a")) == (f"{base}/a" if isolated else "/a")
