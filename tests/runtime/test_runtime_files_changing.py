"""DELETE, `:move` and `:mkdir`."""

import os
from pathlib import Path

import pytest
from support.file_calls import at, reason
from support.runtime_server import RuntimeServer, start_runtime

from sandgate_runtime.files.changing import move
from sandgate_runtime.paths import PathRules


@pytest.fixture
def tree(fresh_runtime: RuntimeServer) -> RuntimeServer:
    base = fresh_runtime.base
    (base / "d" / "sub").mkdir(parents=True)
    (base / "d" / "sub" / "f").write_text("f")
    (base / "g").write_text("g")
    return fresh_runtime


def delete(server: RuntimeServer, path: str, query: str = "") -> tuple[int, str]:
    answer = server.client.delete(at(path) + query)
    return (204, "") if answer.status_code == 204 else reason(answer)


def rename(server: RuntimeServer, path: str, to: str, **members: object) -> tuple[int, str]:
    answer = server.client.post(at(path, ":move"), json={"to": to, **members})
    return (204, "") if answer.status_code == 204 else reason(answer)


def test_a_file_and_an_empty_directory_are_removed_and_a_full_one_only_if_told(
    tree: RuntimeServer,
) -> None:
    assert delete(tree, "g") == (204, "")
    assert delete(tree, "g") == (404, "file_not_found")
    assert delete(tree, "d") == (409, "directory_not_empty")
    assert delete(tree, "d", "?recursive=false") == (409, "directory_not_empty")
    assert delete(tree, "d", "?recursive=perhaps") == (400, "invalid_parameter")
    assert (tree.base / "d" / "sub" / "f").exists()
    assert delete(tree, "d", "?recursive=true") == (204, "")
    assert os.listdir(tree.base) == []


def test_a_link_is_removed_and_not_what_it_leads_to(tree: RuntimeServer) -> None:
    outside = tree.base.parent / "outside"
    outside.mkdir()
    (outside / "f").touch()
    for name, target in (("l1", "g"), ("l2", "d"), ("l3", outside), ("l4", "nosuch")):
        (tree.base / name).symlink_to(target)
        assert delete(tree, name, "?recursive") == (204, "")
    (tree.base / "d" / "l").symlink_to(outside)
    assert delete(tree, "d", "?recursive") == (204, "")
    assert os.listdir(tree.base) == ["g"]
    assert os.listdir(outside) == ["f"]


def test_the_base_directory_is_only_emptied(tree: RuntimeServer) -> None:
    assert delete(tree, "") == (409, "directory_not_empty")
    assert delete(tree, "", "?recursive=true") == (204, "")
    assert os.listdir(tree.base) == []
    assert tree.run("echo works")["stdout"] == "works\n"


def test_isolated_nothing_that_holds_the_base_directory_is_removed_or_moved(
    fresh_runtime: RuntimeServer,
) -> None:
    base = fresh_runtime.base
    (base / "f").touch()
    with start_runtime(base, env={"SANDGATE_ISOLATED": "1"}) as isolated:
        for path in (base.parent, base.parent.parent, Path("/")):
            assert delete(isolated, str(path), "?recursive") == (403, "permission_denied")
            assert rename(isolated, str(path), "/tmp/x") == (403, "permission_denied")
        assert rename(isolated, str(base), "/tmp/x") == (403, "permission_denied")
        assert delete(isolated, str(base)) == (409, "directory_not_empty")
        assert delete(isolated, str(base), "?recursive") == (204, "")
    assert os.listdir(base) == []


def test_a_removal_happens_only_under_its_conditions(tree: RuntimeServer) -> None:
    etag = tree.client.get(at("g")).headers["etag"]
    refused = tree.client.delete(at("g"), headers={"If-Match": '"x"'})
    assert reason(refused) == (412, "precondition_failed")
    assert tree.client.delete(at("g"), headers={"If-Match": etag}).status_code == 204


def test_files_directories_and_links_move_as_they_are(tree: RuntimeServer) -> None:
    (tree.base / "l").symlink_to("nosuch")
    assert rename(tree, "g", "new/folder/g") == (204, "")
    assert rename(tree, "d", "new/d") == (204, "")
    assert rename(tree, "l", "new/l") == (204, "")
    assert (tree.base / "new/folder/g").read_text() == "g"
    assert (tree.base / "new/d/sub/f").read_text() == "f"
    assert os.readlink(tree.base / "new/l") == "nosuch"
    assert os.listdir(tree.base) == ["new"]


def test_a_move_replaces_a_file_only_if_told_and_a_directory_never(tree: RuntimeServer) -> None:
    (tree.base / "h").write_text("h")
    assert rename(tree, "g", "h") == (409, "already_exists")
    assert rename(tree, "g", "h", overwrite=True) == (204, "")
    assert (tree.base / "h").read_text() == "g"
    assert rename(tree, "h", "d", overwrite=True) == (400, "is_directory")
    assert rename(tree, "d", "h", overwrite=True) == (400, "not_a_directory")
    assert rename(tree, "d", "d/sub/d") == (400, "invalid_path")
    assert rename(tree, "nosuch", "x") == (404, "file_not_found")
    assert rename(tree, "h", "../x") == (403, "permission_denied")
    assert rename(tree, "h", "h/x") == (400, "not_a_directory")


@pytest.mark.parametrize(
    "body", [[], {}, {"to": 1}, {"to": ""}, {"to": "x", "overwrite": 1}, {"to": "x", "from": "g"}]
)
def test_a_wrong_body_of_a_move_is_refused(tree: RuntimeServer, body: object) -> None:
    assert reason(tree.client.post(at("g", ":move"), json=body)) == (422, "invalid_request")


def test_a_move_needs_json_and_its_verb_as_it_is(tree: RuntimeServer) -> None:
    plain = tree.client.post(at("g", ":move"), content=b'{"to": "x"}')
    assert reason(plain) == (415, "unsupported_media_type")
    encoded = tree.client.post("/v1/files/g%3Amove", json={"to": "x"})
    assert reason(encoded) == (400, "invalid_path")
    assert tree.client.post("/v1/files/g:copy").status_code == 405


def test_a_file_moves_to_another_file_system_and_a_directory_is_refused(
    tmp_path: Path,
) -> None:
    with start_runtime(tmp_path, env={"SANDGATE_ISOLATED": "1"}) as server:
        (tmp_path / "f").write_bytes(b"x" * 3_000_000)
        (tmp_path / "f").chmod(0o750)
        (tmp_path / "d").mkdir()
        other = Path("/dev/shm") / tmp_path.name
        try:
            assert rename(server, "f", str(other / "f")) == (204, "")
            assert (other / "f").read_bytes() == b"x" * 3_000_000
            assert (other / "f").stat().st_mode & 0o7777 == 0o750
            assert rename(server, "d", str(other / "d")) == (409, "other_file_system")
            assert os.listdir(tmp_path) == ["d"]
        finally:
            assert delete(server, str(other), "?recursive") == (204, "")


def test_a_directory_is_made_with_its_parents_and_may_be_there_already(
    tree: RuntimeServer,
) -> None:
    def make(path: str, query: str = "") -> int:
        return tree.client.post(at(path, ":mkdir") + query).status_code

    assert make("x/y", "?mode=0700") == 201
    assert (tree.base / "x/y").stat().st_mode & 0o7777 == 0o700
    assert make("x/y", "?mode=0755") == 204
    assert (tree.base / "x/y").stat().st_mode & 0o7777 == 0o700
    assert make("") == 204
    assert reason(tree.client.post(at("g", ":mkdir"))) == (409, "already_exists")
    assert reason(tree.client.post(at("g/x", ":mkdir"))) == (400, "not_a_directory")
    assert make("z", "?mode=7") == 400


def test_a_move_without_overwriting_is_atomic(tmp_path: Path) -> None:
    """A name that is taken at the last moment is not replaced."""
    rules = PathRules(str(tmp_path), isolated=False)
    (tmp_path / "a").write_text("a")
    source, target = rules.resolve("a"), rules.resolve("b")
    (tmp_path / "b").write_text("b")
    with pytest.raises(FileExistsError):
        move(source, target, overwrite=False)
    assert (tmp_path / "b").read_text() == "b"
