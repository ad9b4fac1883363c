"""The runtime's file routes through a real gateway, as any HTTP client uses them."""

import base64
import hashlib
import json
import os
from collections.abc import Iterator

import httpx
import pytest
from support.file_calls import at, build_tar, member, names, reason
from support.system_gateway import SystemGateway, routing_fields

from sandgate import Sandbox


@pytest.fixture
def client(gateway: SystemGateway, sandbox: Sandbox) -> Iterator[httpx.Client]:
    """Yield a client whose requests go to the sandbox."""
    with gateway.client() as client:
        client.headers.update(routing_fields(sandbox))
        yield client


def test_a_file_makes_the_round_trip_with_its_digest(client: httpx.Client) -> None:
    content = os.urandom(5_000_000)
    digest = base64.b64encode(hashlib.sha256(content).digest()).decode()
    fields = {"Repr-Digest": f"sha-256=:{digest}:"}
    put = client.put(at("d/ä b.bin"), content=content, headers=fields)
    assert put.status_code == 204, put.text
    got = client.get(at("d/ä b.bin"), headers={"Want-Repr-Digest": "sha-256=1"})
    assert got.content == content
    assert got.headers["repr-digest"] == fields["Repr-Digest"]
    etag = got.headers["etag"]
    assert client.get(at("d/ä b.bin"), headers={"If-None-Match": etag}).status_code == 304
    part = client.get(at("d/ä b.bin"), headers={"Range": "bytes=-3"})
    assert (part.status_code, part.content) == (206, content[-3:])
    again = client.put(at("d/ä b.bin"), content=b"", headers={"If-None-Match": "*"})
    assert reason(again) == (412, "precondition_failed")


def test_a_path_means_the_same_to_files_and_to_commands(
    client: httpx.Client, sandbox: Sandbox, isolation: str
) -> None:
    path = "/home/user/run.sh" if isolation == "bubblewrap" else "run.sh"
    assert client.put(at(path) + "?mode=0755", content=b"#!/bin/sh\npwd\n").status_code == 204
    assert sandbox.commands.run(path if path[0] == "/" else f"./{path}").exit_code == 0
    printed = sandbox.commands.run("echo needle > found; pwd").stdout.strip()
    assert client.get(at(f"{printed}/found")).text == "needle\n"
    assert sandbox.files.read("found") == b"needle\n"
    assert names(client.get(at(printed), params={"glob": "f*"})) == ["found"]
    assert names(client.get(at(""), params={"grep": "needle"})) == ["found"]


def test_directories_move_and_leave_as_archives(client: httpx.Client) -> None:
    archive = build_tar([member("src/a.py", b"print()\n"), member("src/b.py")])
    assert client.put(at("in"), params={"extract": "tar.gz"}, content=archive).status_code == 204
    assert client.post(at("in/src", ":move"), json={"to": "out"}).status_code == 204
    assert names(client.get(at(""), params={"recursive": ""})) == [
        "in", "out", "out/a.py", "out/b.py",
    ]  # fmt: skip
    packed = client.get(at("out"), params={"archive": "tar.gz"})
    assert packed.headers["content-type"] == "application/gzip"
    assert client.put(at("2"), params={"extract": "tar.gz"}, content=packed.content).is_success
    assert client.get(at("2/a.py")).text == "print()\n"
    assert client.delete(at("out"), params={"recursive": "true"}).status_code == 204
    assert reason(client.get(at("out"))) == (404, "file_not_found")


def test_changes_are_told_as_they_happen(client: httpx.Client, sandbox: Sandbox) -> None:
    with client.stream("GET", "/v1/watch", params={"recursive": "true"}) as answer:
        lines = answer.iter_lines()
        assert next(lines) == "event: ready"
        sandbox.files.write("new/f", b"x")
        wanted = {"name": "new/f"}
        assert any(line == f"data: {json.dumps(wanted)}" for line in lines)


def test_what_the_sandbox_was_told_can_be_asked_for(client: httpx.Client) -> None:
    env = client.get("/v1/metadata").json()["env"]
    assert all(name.startswith("SANDBOX_") for name in env)
