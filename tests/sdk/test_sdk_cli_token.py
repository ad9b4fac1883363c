"""`sandgate token`: a token made by hand opens its sandbox at a real gateway, and says what."""

import asyncio
import base64
import json
import os
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from support.raw_client import connect, request
from support.running_gateway import running_gateway
from support.scripted_upstream import ScriptedUpstream, answer_ok

SECRET = base64.b64encode(b"s" * 32).decode()


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "keys.yaml"
    path.write_text(f"keys: [{{kid: k1, secret: {SECRET!r}, use: sign}}]")
    return path


def token(
    *arguments: str, given: str | None = None, **environ: str
) -> "subprocess.CompletedProcess[str]":
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SANDGATE_")}
    return subprocess.run(
        [sys.executable, "-m", "sandgate.cli", "token", *arguments],
        env={**kept, **environ},
        input=given,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def mint(*arguments: str, **environ: str) -> str:
    done = token("mint", *arguments, **environ)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


def inspect(text: str, *arguments: str, **environ: str) -> dict[str, Any]:
    done = token("inspect", *arguments, given=text + "\n", **environ)
    assert done.stderr == ""
    members: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (0 if members["verdict"].startswith(("valid", "unchecked")) else 1)
    return members


async def test_a_token_made_by_hand_opens_its_sandbox(keys: Path) -> None:
    text = await asyncio.to_thread(mint, "sb", "--keys", str(keys))
    async with (
        ScriptedUpstream(answer_ok).running() as upstream,
        running_gateway(SANDGATE_KEYS=str(keys)) as gateway,
        connect(gateway.port) as client,
    ):
        for sandbox in ("sb", "sb-2"):
            gateway.registry.add(sandbox, upstream.port, uid="any")
            await client.send(request(sandbox=sandbox, more=f"X-Sandbox-Token: {text}\r\n"))
        assert [(await client.read_answer()).status for _ in range(2)] == [200, 403]


def test_what_was_asked_for_is_what_it_says(keys: Path) -> None:
    options = (
        *("--namespace", "team", "--claim", "tour", "--uid", "u-1", "--scope", "ws"),
        *("--port", "8888", "--port", "80", "--port", "80", "--life", "60"),
    )
    environ = {"SANDGATE_KEYS": str(keys), "SANDGATE_AUDIENCE": "here"}
    shown = inspect(mint("sb", *options, **environ), **environ)
    ends = [datetime.fromisoformat(shown.pop(name)) for name in ("not_before", "expires_at")]
    assert (ends[1] - ends[0]).total_seconds() == 60
    assert shown == {
        "kid": "k1",
        "audience": "here",
        "namespace": "team",
        "claim": "tour",
        "sandbox": "sb",
        "uid": "u-1",
        "ports": [80, 8888],
        "scopes": ["ws"],
        "verdict": "valid",
    }


def test_without_options_it_is_good_for_any_port_and_generation_for_an_hour(keys: Path) -> None:
    shown = inspect(mint("sb", "--keys", str(keys)))
    assert (shown["namespace"], shown["claim"], shown["uid"]) == ("default", "sb", None)
    assert (shown["ports"], shown["scopes"]) == (None, ["http", "ws"])
    assert shown["verdict"] == "unchecked; give --keys"


def test_what_a_gateway_would_refuse_is_told_with_the_reason(keys: Path) -> None:
    text = mint("sb", "--keys", str(keys))
    wrong = text[:-4] + ("AAAA" if not text.endswith("AAAA") else "BBBA")
    assert inspect(wrong, "--keys", str(keys))["verdict"] in {"bad_mac", "malformed"}
    other = ("--keys", str(keys), "--audience", "there")
    assert inspect(text, *other)["verdict"] == "other_audience"
    assert token("inspect", text, *other).returncode == 1


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("mint", "Box"), 2, "'Box' is not a label"),
        (("mint", "sb", "--namespace", "a/b"), 2, "'a/b' is not a label"),
        (("mint", "sb", "--uid", 'u"'), 2, "no token can say"),
        (("mint", "sb", "--port", "0"), 2, "0 is not in the range"),
        (("mint", "sb", "--scope", "tcp"), 2, "'tcp' is not one of"),
        (("mint", "sb", "--life", "0"), 2, "0 is not in the range"),
        (("mint", "sb", "--life", "604801"), 2, "604801 is not in the range"),
        (("mint",), 2, "Missing argument 'SANDBOX'"),
        (("inspect", "hunter2"), 1, "this is no token of a sandbox: it is not sg1."),
    ],
)
def test_what_cannot_be_done_is_told(
    keys: Path, arguments: tuple[str, ...], code: int, said: str
) -> None:
    done = token(*arguments, SANDGATE_KEYS=str(keys))
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr
    assert "hunter2" not in done.stderr


def test_a_bad_file_of_keys_is_told_and_no_secret_is(tmp_path: Path) -> None:
    done = token("mint", "sb")
    assert (done.returncode, "Missing option '--keys'" in done.stderr) == (2, True)
    (tmp_path / "keys.yaml").write_text("keys: [{kid: 1, secret: hunter2, use: sign}]")
    done = token("mint", "sb", "--keys", str(tmp_path / "keys.yaml"))
    assert (done.returncode, done.stdout) == (1, "")
    assert "is no text; put it in quotes" in done.stderr
    assert "secret is no base64" in done.stderr
    assert "hunter2" not in done.stderr
