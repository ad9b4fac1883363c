"""Whose requests are read at all."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from support.runtime_server import start_runtime

from sandgate_runtime.guard import check_sender

NAME, UID = "team/sb-1", "5f0c"
RIGHT = {"X-Sandbox-Expect-Name": NAME, "X-Sandbox-Expect-UID": UID}


def status(fields: Sequence[tuple[str, str]], *, name: str | None, uid: str | None) -> int:
    raw = [(field.lower().encode(), value.encode()) for field, value in fields]
    refusal = check_sender(raw, name=name, uid=uid)
    return 200 if refusal is None else refusal.status


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ([("X-Sandbox-Expect-Name", NAME), ("X-Sandbox-Expect-UID", UID)], 200),
        ([], 421),
        ([("X-Sandbox-Expect-Name", NAME)], 421),
        ([("X-Sandbox-Expect-UID", UID)], 421),
        ([("X-Sandbox-Expect-Name", NAME), ("X-Sandbox-Expect-UID", "5f0d")], 421),
        ([("X-Sandbox-Expect-Name", "team/sb-2"), ("X-Sandbox-Expect-UID", UID)], 421),
        ([*RIGHT.items(), ("X-Sandbox-Expect-UID", "5f0d")], 421),
        ([*RIGHT.items(), ("Origin", "http://evil.test")], 200),
    ],
)
def test_a_runtime_that_knows_itself_serves_only_what_is_meant_for_it(
    fields: list[tuple[str, str]], expected: int
) -> None:
    assert status(fields, name=NAME, uid=UID) == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ([], 200),
        ([("X-Sandbox-Expect-UID", "anything")], 200),
        ([("Origin", "http://evil.test")], 403),
        ([("Origin", "null")], 403),
        ([("Origin", "http://x.test"), ("X-Sandbox-Expect-UID", "anything")], 200),
    ],
)
def test_a_runtime_that_knows_nothing_refuses_only_web_pages(
    fields: list[tuple[str, str]], expected: int
) -> None:
    assert status(fields, name=None, uid=None) == expected


def test_a_runtime_that_knows_its_name_serves_probes_but_no_other_name() -> None:
    assert status([], name=NAME, uid=None) == 200
    assert status([("X-Sandbox-Expect-Name", "team/other")], name=NAME, uid=None) == 421


def test_nothing_runs_for_a_request_that_is_meant_for_another_sandbox(tmp_path: Path) -> None:
    env = {"SANDGATE_SANDBOX_NAME": NAME, "SANDGATE_SANDBOX_UID": UID}
    with start_runtime(tmp_path, env=env) as server:
        body = {"command": "touch ran"}
        wrong = server.client.post(
            "/execute", json=body, headers={**RIGHT, "X-Sandbox-Expect-UID": "old"}
        )
        assert (wrong.status_code, wrong.json()["reason"]) == (421, "sandbox_replaced")
        assert server.client.get("/v1/health").status_code == 421
        assert not (tmp_path / "ran").exists()
        assert server.client.post("/execute", json=body, headers=RIGHT).status_code == 200
        assert (tmp_path / "ran").exists()
