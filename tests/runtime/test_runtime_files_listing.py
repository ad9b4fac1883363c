"""Directories under `/v1`: order, members, pages, patterns and searches."""

import os
import socket
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from support.file_calls import at, names, reason
from support.runtime_server import RuntimeServer, start_runtime


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RuntimeServer]:
    """A runtime over a small project that nobody changes."""
    base = tmp_path_factory.mktemp("base")
    for path in ("a.py", "src/b.py", "src/deep/c.py", "src/.hidden/d.py", ".env", "src/d.txt"):
        (base / path).parent.mkdir(parents=True, exist_ok=True)
        (base / path).write_text(f"one\nneedle in {path}\nthree\n")
    (base / "src" / "bin").write_bytes(b"\0needle\n")
    (base / "link").symlink_to("src")
    with start_runtime(base) as server:
        yield server


def ask(server: RuntimeServer, path: str = "", **parameters: object) -> list[str]:
    """Return all names; a busy machine may answer them in more pages than one."""
    return list(chain.from_iterable(all_pages(server, path, **parameters)))


def all_pages(server: RuntimeServer, path: str = "", **parameters: object) -> list[list[str]]:
    pages, cursor = [], str(parameters.get("cursor", ""))
    while True:
        query = {**parameters, "cursor": cursor}
        answer = server.client.get(at(path), params={k: str(v) for k, v in query.items()})
        pages.append(names(answer))
        cursor = answer.json().get("next_cursor", "")
        if not cursor:
            return pages
        assert len(pages) < 1000


def test_a_listing_is_sorted_and_tells_size_kind_time_and_mode(
    fresh_runtime: RuntimeServer,
) -> None:
    base = fresh_runtime.base
    (base / "d" / "sub").mkdir(parents=True, mode=0o750)
    (base / "d" / "b.txt").write_bytes(b"12345")
    (base / "d" / "b.txt").chmod(0o4640)
    os.utime(base / "d" / "b.txt", (1.5, 1.5))
    (base / "d" / "a-link").symlink_to("sub")
    (base / "d" / "broken").symlink_to("nosuch")
    (base / "d" / "loop").symlink_to("loop")
    (base / "d" / "out").symlink_to("/etc/passwd")
    os.mkfifo(base / "d" / "fifo")
    body = fresh_runtime.client.get(at("d")).json()
    assert body.keys() == {"path", "entries"}
    assert body["path"] == "/d"
    assert [(e["name"], e["type"], e.get("special")) for e in body["entries"]] == [
        ("a-link", "directory", None),
        ("b.txt", "file", None),
        ("fifo", "file", "fifo"),
        ("sub", "directory", None),
    ]
    assert body["entries"][1] == {
        "name": "b.txt",
        "size": 5,
        "type": "file",
        "modified_at": "1970-01-01T00:00:01Z",
        "mode": "4640",
    }


@pytest.mark.parametrize("time", [-1, 0, 1 << 40, -(1 << 40)])
def test_a_file_of_any_time_can_be_listed(fresh_runtime: RuntimeServer, time: int) -> None:
    (fresh_runtime.base / "f").touch()
    os.utime(fresh_runtime.base / "f", (0, time))
    (entry,) = fresh_runtime.client.get(at("")).json()["entries"]
    assert entry["modified_at"].endswith("Z")
    assert fresh_runtime.client.get(at("f")).status_code == 200


def test_a_tree_is_listed_in_order_and_links_are_not_entered(tree: RuntimeServer) -> None:
    assert ask(tree, recursive="true") == [
        ".env", "a.py", "link", "src", "src/.hidden", "src/.hidden/d.py", "src/b.py", "src/bin",
        "src/d.txt", "src/deep", "src/deep/c.py",
    ]  # fmt: skip
    assert ask(tree) == [".env", "a.py", "link", "src"]
    assert ask(tree, "link") == [".hidden", "b.py", "bin", "d.txt", "deep"]


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
@pytest.mark.parametrize("parameters", [{}, {"recursive": ""}, {"glob": "**/*.py"}])
def test_pages_together_are_the_whole_listing(
    tree: RuntimeServer, limit: int, parameters: dict[str, str]
) -> None:
    pages = all_pages(tree, limit=limit, **parameters)
    assert list(chain.from_iterable(pages)) == ask(tree, **parameters)
    assert all(len(page) <= limit for page in pages)


def test_a_page_goes_on_where_it_was_whatever_has_changed(fresh_runtime: RuntimeServer) -> None:
    for name in "abdef":
        (fresh_runtime.base / name).touch()
    first = fresh_runtime.client.get(at(""), params={"limit": "3"}).json()
    (fresh_runtime.base / "d").unlink()
    (fresh_runtime.base / "c").touch()
    cursor = first["next_cursor"]
    assert ask(fresh_runtime, cursor=cursor) == ["e", "f"]


def test_20_000_entries_come_in_pages_at_flat_memory(fresh_runtime: RuntimeServer) -> None:
    for number in range(20_000):
        os.mknod(fresh_runtime.base / f"{number:05}")
    fresh_runtime.client.get(at(""), params={"limit": "10"})
    before = fresh_runtime.resident_bytes()
    pages = all_pages(fresh_runtime)
    assert max(map(len, pages)) <= 10_000
    together = list(chain.from_iterable(pages))
    assert len(together) == 20_000
    assert together == sorted(together)
    assert fresh_runtime.resident_bytes() - before < 32 << 20


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*", ["a.py", "link", "src"]),
        ("*.py", ["a.py"]),
        (".*", [".env"]),
        ("src/*.py", ["src/b.py"]),
        ("**/*.py", ["a.py", "src/b.py", "src/deep/c.py"]),
        ("src/**", ["src", "src/b.py", "src/bin", "src/d.txt", "src/deep", "src/deep/c.py"]),
        ("**/.hidden/*", ["src/.hidden/d.py"]),
        ("src/[bd].*", ["src/b.py", "src/d.txt"]),
        ("src/[!b].txt", ["src/d.txt"]),
        ("src/?.py", ["src/b.py"]),
        ("[", []),
        ("nosuch/**", []),
    ],
)
def test_a_pattern_finds_what_a_shell_would(
    tree: RuntimeServer, pattern: str, expected: list[str]
) -> None:
    assert ask(tree, glob=pattern) == expected


def test_a_search_finds_lines_in_order_and_passes_over_binaries(tree: RuntimeServer) -> None:
    answer = tree.client.get(at(""), params={"grep": "needle"})
    assert answer.json()["matches"][1] == {"name": "a.py", "line": 2, "text": "needle in a.py"}
    assert names(answer) == [
        ".env", "a.py", "src/.hidden/d.py", "src/b.py", "src/d.txt", "src/deep/c.py",
    ]  # fmt: skip
    assert ask(tree, grep="needle", glob="*.txt") == ["src/d.txt"]
    assert ask(tree, grep="needle", glob="src/*.py") == ["src/b.py"]
    assert ask(tree, grep="needle", recursive="false") == [".env", "a.py"]
    assert ask(tree, "a.py", grep="three") == ["a.py"]
    assert ask(tree, grep=".*") == []
    for limit in (1, 2, 4):
        pages = all_pages(tree, grep="needle", limit=limit)
        assert list(chain.from_iterable(pages)) == names(answer)


def test_a_search_in_one_file_comes_in_pages_and_survives_any_line(
    fresh_runtime: RuntimeServer,
) -> None:
    content = b"needle\r\n\xff needle \xff\n" + b"x" * 3_000_000 + b"needle" + b"y" * 3_000_000
    (fresh_runtime.base / "f").write_bytes(content + b"\nneedle")
    matches: list[dict[str, Any]] = []
    cursor = ""
    while not matches or cursor:
        query = {"grep": "needle", "limit": "2", "cursor": cursor}
        body = fresh_runtime.client.get(at("f"), params=query).json()
        assert len(body["matches"]) <= 2
        matches += body["matches"]
        cursor = body.get("next_cursor", "")
    assert [match["line"] for match in matches] == [1, 2, 3, 4]
    assert matches[0]["text"] == "needle"
    assert matches[1]["text"] == "\ufffd needle \ufffd"
    assert "xneedley" in matches[2]["text"]
    assert len(matches[2]["text"]) == 1000
    assert matches[3]["text"] == "needle"


def test_a_text_that_crosses_a_piece_of_a_long_line_is_found(
    fresh_runtime: RuntimeServer,
) -> None:
    for shift in (3, 0, -3):
        content = b"x" * ((1 << 20) - shift) + b"needle" + b"x" * (1 << 20)
        (fresh_runtime.base / "f").write_bytes(content)
        assert ask(fresh_runtime, grep="needle") == ["f"]


def test_special_files_and_links_are_not_searched(fresh_runtime: RuntimeServer) -> None:
    base = fresh_runtime.base
    os.mkfifo(base / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(base / "socket"))
    (base / "link").symlink_to("/etc/passwd")
    assert ask(fresh_runtime, grep="root") == []


@pytest.mark.parametrize(
    "query",
    [
        "limit=0", "limit=10001", "limit=-1", "limit=1e3", "limit=", "recursive=maybe",
        "recursive=true&recursive=true", "unknown=1", "glob=", "glob=/etc/*", "glob=../*",
        "glob=a//b", "glob=" + "x" * 1025, "glob=" + "*a" * 33, "grep=", "grep=a%0Ab",
        "grep=" + "x" * 1001, "grep=x&limit=1001", "cursor=x", "cursor=Lw", "archive=zip",
        "cursor=Li4", "cursor=YQA", "archive=tar.gz&limit=1", "cursor=" + "YWFh" * 1500,
        "cursor=YQAtMQAx", "cursor=é", "glob=%00",
    ],
)  # fmt: skip
def test_a_wrong_parameter_is_refused(tree: RuntimeServer, query: str) -> None:
    assert reason(tree.client.get(f"/v1/files/?{query}")) == (400, "invalid_parameter")


def test_a_listing_of_a_file_is_refused_where_it_was_asked_for(tree: RuntimeServer) -> None:
    for query in ("recursive=false", "glob=*", "archive=tar.gz"):
        assert reason(tree.client.get(at("a.py") + f"?{query}")) == (400, "not_a_directory")


def test_a_tree_that_is_deeper_than_a_path_is_listed_as_far_as_paths_go(
    fresh_runtime: RuntimeServer,
) -> None:
    make_deep(fresh_runtime.base, depth=300)
    found = ask(fresh_runtime, recursive="true")
    assert 15 < len(found) < 300
    assert ask(fresh_runtime, grep="x") == []


def make_deep(base: Path, *, depth: int) -> None:
    """Make nested directories with names of 200 bytes: far more than a path of 4,095."""
    directory = os.open(base, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("n" * 200, dir_fd=directory)
        below = os.open("n" * 200, os.O_RDONLY, dir_fd=directory)
        os.close(directory)
        directory = below
    os.close(directory)


def test_what_is_deeper_than_a_path_is_removed_all_the_same(fresh_runtime: RuntimeServer) -> None:
    (fresh_runtime.base / "d").mkdir()
    make_deep(fresh_runtime.base / "d", depth=300)
    answer = fresh_runtime.client.delete(at("d"), params={"recursive": "true"})
    assert answer.status_code == 204, answer.text
    assert os.listdir(fresh_runtime.base) == []


def test_a_request_looks_at_100_000_names_at_most(fresh_runtime: RuntimeServer) -> None:
    for number in range(100_010):
        os.mknod(fresh_runtime.base / f"{number:06}")
    pages = all_pages(fresh_runtime, glob="*9")
    assert len(pages) > 1
    assert sum(map(len, pages)) == 10_001
