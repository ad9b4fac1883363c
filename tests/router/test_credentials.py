"""What opens the relay follows from the settings, and from the file of keys as it changes."""

import asyncio
import base64
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from support.raw_client import connect, request
from support.running_gateway import running_gateway
from support.scripted_upstream import ScriptedUpstream, answer_ok

from sandgate_router.authorize import Anyone, ByCapability, SharedToken
from sandgate_router.capability import Capabilities, InvalidToken, MintedToken, NoTokens
from sandgate_router.config import BadConfig, Config
from sandgate_router.credentials import Credentials, build_credentials


def write(path: Path, **secrets: bytes) -> None:
    """List keys, the first of which signs."""
    entries = [
        f"{{kid: {kid}, secret: {base64.b64encode(secret).decode()!r}, use: {use}}}"
        for (kid, secret), use in zip(secrets.items(), ["sign", *["verify"] * 9], strict=False)
    ]
    fresh = path.with_suffix(".new")
    fresh.write_text(f"keys: [{', '.join(entries)}]")
    os.replace(fresh, path)


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "keys.yaml"
    write(path, k1=b"1" * 32)
    return path


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_bytes(b"x" * 32)
    return path


def build(**environ: str) -> Credentials:
    return build_credentials(Config.from_environ(environ, command="up"))


def mint(credentials: Credentials) -> MintedToken | None:
    claim = SimpleNamespace(
        namespace="default",
        name="tour",
        sandbox="sb",
        uid="u-1",
        ports=None,
        expires_at=datetime.now(UTC) + timedelta(seconds=60),
    )
    return credentials.tokens.mint(claim)


def test_up_signs_with_a_key_that_no_other_gateway_has() -> None:
    one, other = build(), build()
    minted = mint(one)
    assert minted is not None
    assert one.tokens.verify(minted.token.encode()).claim == "tour"
    with pytest.raises(InvalidToken):
        other.tokens.verify(minted.token.encode())
    assert isinstance(one.authorizer, ByCapability)
    assert one.key_file is None


@pytest.mark.parametrize(
    ("environ", "authorizer", "tokens"),
    [
        ({"SANDGATE_KEYS": "{keys}"}, ByCapability, Capabilities),
        ({"SANDGATE_SCOPED_TOKEN_FILE": "{secret}"}, ByCapability, NoTokens),
        ({"ROUTER_AUTH_TOKEN": "t"}, SharedToken, NoTokens),
        ({"ALLOW_UNAUTHENTICATED_ROUTER": "true"}, Anyone, NoTokens),
        ({"SANDGATE_AUTH": "none"}, Anyone, NoTokens),
        # A claim's token is good at the control API, whoever opens the relay.
        ({"SANDGATE_AUTH": "none", "SANDGATE_KEYS": "{keys}"}, Anyone, Capabilities),
    ],
)
def test_who_checks_and_who_mints_follow_from_the_settings(
    environ: dict[str, str], authorizer: type, tokens: type, keys: Path, secret: Path
) -> None:
    credentials = build(
        **{name: text.format(keys=keys, secret=secret) for name, text in environ.items()}
    )
    assert type(credentials.authorizer) is authorizer
    assert type(credentials.tokens) is tokens
    assert (mint(credentials) is None) is (tokens is NoTokens)


def test_an_audience_of_one_s_own_keeps_others_tokens_out(keys: Path) -> None:
    here = build(SANDGATE_KEYS=str(keys), SANDGATE_AUDIENCE="here")
    there = build(SANDGATE_KEYS=str(keys), SANDGATE_AUDIENCE="there")
    minted = mint(here)
    assert minted is not None
    with pytest.raises(InvalidToken):
        there.tokens.verify(minted.token.encode())


@pytest.mark.parametrize("setting", ["SANDGATE_KEYS", "SANDGATE_SCOPED_TOKEN_FILE"])
def test_a_file_that_cannot_be_used_is_told_before_anything_listens(
    tmp_path: Path, setting: str
) -> None:
    (tmp_path / "bad").write_text("hunter2")
    for name in ("bad", "missing"):
        with pytest.raises(BadConfig, match=str(tmp_path / name)) as caught:
            build(**{setting: str(tmp_path / name)})
        assert "hunter2" not in str(caught.value)


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


async def test_a_key_that_is_removed_opens_nothing_any_more_and_a_bad_file_changes_nothing(
    keys: Path,
) -> None:
    credentials = build(SANDGATE_KEYS=str(keys))
    registry = CollectorRegistry()
    registry.register(credentials.metrics())
    old = mint(credentials)
    assert old is not None

    def is_good() -> bool:
        try:
            credentials.tokens.verify(old.token.encode())
        except InvalidToken:
            return False
        return True

    def failures() -> bool:
        return b"sandgate_key_reload_failures_total 1.0" in generate_latest(registry)

    async with credentials.following(every=0.01):
        assert is_good()
        assert not failures()
        keys.write_text("keys: []")
        await eventually(failures)
        assert is_good()
        write(keys, k2=b"2" * 32, k1=b"1" * 32)
        await eventually(lambda: mint(credentials).token.startswith("sg1.k2."))  # type: ignore[union-attr]
        assert is_good()
        write(keys, k2=b"2" * 32)
        await eventually(lambda: not is_good())
    assert len(asyncio.all_tasks()) == 1


async def test_two_gateways_with_one_file_take_each_other_s_tokens(keys: Path) -> None:
    minted = mint(build(SANDGATE_KEYS=str(keys)))
    assert minted is not None
    raw = request(more=f"X-Sandbox-Token: {minted.token}\r\n")
    async with (
        ScriptedUpstream(answer_ok).running() as upstream,
        running_gateway(SANDGATE_KEYS=str(keys)) as gateway,
        connect(gateway.port) as client,
    ):
        gateway.registry.add("sb", upstream.port, uid="u-1")
        await client.send(raw)
        assert (await client.read_answer()).status == 200


def test_tokens_end_by_the_clock_that_people_read(keys: Path) -> None:
    late = [time.time()]
    config = Config.from_environ({"SANDGATE_KEYS": str(keys)}, command="up")
    credentials = build_credentials(config, now=lambda: late[0])
    minted = mint(credentials)
    assert minted is not None
    assert credentials.tokens.verify(minted.token.encode())
    late[0] += 61
    with pytest.raises(InvalidToken):
        credentials.tokens.verify(minted.token.encode())


def test_no_secret_is_in_a_repr(keys: Path, secret: Path) -> None:
    credentials = build(SANDGATE_KEYS=str(keys), SANDGATE_SCOPED_TOKEN_FILE=str(secret))
    shown = repr((credentials, credentials.metrics()))
    assert "11111" not in shown
    assert "xxxxx" not in shown
