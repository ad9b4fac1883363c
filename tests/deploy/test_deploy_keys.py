"""A change of keys, step by step, refuses no token of anybody's."""

import stat
import subprocess
import sys
from pathlib import Path

import pytest
from deploy.manifests import DEPLOY

from sandgate_router.capability import Capabilities, InvalidToken
from sandgate_router.capability_text import Capability
from sandgate_router.keys import KeyFile, load_keys
from sandgate_router.names import Label

CLAIM = Capability(
    audience="sandgate",
    namespace=Label("default"),
    claim=Label("box"),
    sandbox=Label("python-1"),
    uid="u-1",
    ports=None,
    scopes=("http", "ws"),
    not_before=0,
    expires_at=2_000_000_000,
)


def step(name: str, path: Path, *, status: int = 0) -> str:
    program = [sys.executable, str(DEPLOY / "rotate_keys.py"), name, str(path)]
    done = subprocess.run(program, capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == status, done.stderr
    return done.stdout + done.stderr


def gateway(path: Path) -> Capabilities:
    """Return what a gateway signs and verifies by, having read the file as it is now."""
    return Capabilities(load_keys(path), audience="sandgate", now=lambda: 1_000.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.yaml"


def test_gateways_that_have_read_it_and_those_that_have_not_take_each_other_s_tokens(
    path: Path,
) -> None:
    step("first", path)
    before = gateway(path)
    for name in ("add", "sign", "drop", "add", "sign", "drop"):
        step(name, path)
        after = gateway(path)
        for signing, verifying in ((before, after), (after, before)):
            assert verifying.verify(signing.sign(CLAIM).encode()) == CLAIM
        before = after


def test_a_token_of_a_dropped_key_is_refused(path: Path) -> None:
    step("first", path)
    token = gateway(path).sign(CLAIM).encode()
    for name in ("add", "sign"):
        step(name, path)
        assert gateway(path).verify(token) == CLAIM
    step("drop", path)
    with pytest.raises(InvalidToken):
        gateway(path).verify(token)


def test_a_gateway_that_runs_takes_up_every_step(path: Path) -> None:
    step("first", path)
    followed = KeyFile(path)
    for name in ("add", "sign", "drop"):
        step(name, path)
        assert followed.reload()
    assert followed.failures == 0


@pytest.mark.parametrize(
    ("done", "next_step"),
    [
        (["first", "add"], "add"),
        (["first", "add"], "drop"),
        (["first"], "sign"),
        (["first"], "first"),
    ],
)
def test_a_step_that_would_skip_another_changes_nothing(
    path: Path, done: list[str], next_step: str
) -> None:
    for name in done:
        step(name, path)
    before = path.read_bytes()
    assert "next is" in step(next_step, path, status=1)
    assert path.read_bytes() == before
    assert [found.name for found in path.parent.iterdir()] == [path.name]


def test_a_file_as_the_documentation_has_it_is_taken_on(path: Path) -> None:
    path.write_text(
        f'keys:\n  - {{kid: "2026-12", secret: "{"QUJD" * 11}", use: sign}}\n'
        f'  - {{kid: "2026-11", secret: "{"REVG" * 11}", use: verify}}\n'
    )
    step("add", path)
    assert load_keys(path).signing == "2026-12"
    step("sign", path)
    assert load_keys(path).signing not in {"2026-12", "2026-11"}
    step("drop", path)
    assert len(load_keys(path).secrets) == 1


@pytest.mark.parametrize("content", ["", "keys: 3", "keys: [{kid: a}]", "keys: []", "\t", "[1]"])
def test_what_is_no_file_of_keys_is_told_without_its_content(path: Path, content: str) -> None:
    path.write_text(content)
    assert str(path) in step("add", path, status=1)
    assert path.read_text() == content


def test_secrets_are_neither_shown_nor_left_for_others_to_read(path: Path) -> None:
    shown = step("first", path) + step("add", path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for line in path.read_text().splitlines():
        if "secret" in line:
            assert line.split()[-1] not in shown
