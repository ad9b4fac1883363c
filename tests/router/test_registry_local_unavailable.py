import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from support.local_sandbox import needs_bubblewrap

from sandgate_router.registry.local import IsolationUnavailable, check_isolation
from sandgate_router.registry.local.unavailable import explain


@needs_bubblewrap
async def test_a_check_of_isolation_leaves_nothing() -> None:
    before = set(Path(tempfile.gettempdir()).iterdir())
    await check_isolation()
    assert set(Path(tempfile.gettempdir()).iterdir()) - before == set()


async def test_without_bubblewrap_the_message_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(IsolationUnavailable, match="sudo apt-get install bubblewrap"):
        await check_isolation()


async def test_a_bubblewrap_that_fails_is_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        bwrap = Path(folder, "bwrap")
        bwrap.write_text("#!/bin/sh\necho 'bwrap: No permissions to create namespace'; exit 1\n")
        bwrap.chmod(0o755)
        bwrap.parent.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        with pytest.raises(IsolationUnavailable, match="No permissions to create") as refused:
            await check_isolation()
    assert "--isolation none" in str(refused.value)


@pytest.mark.parametrize(
    ("words", "settings", "hint"),
    [
        ("bwrap: Unknown option --disable-userns", {}, "older than 0.8"),
        ("x", {"kernel.unprivileged_userns_clone": "0"}, "kernel.unprivileged_userns_clone=0"),
        ("x", {"user.max_user_namespaces": "0"}, "user.max_user_namespaces=0"),
        (
            "bwrap: setting up uid map: Permission denied",
            {"kernel.apparmor_restrict_unprivileged_userns": "1"},
            "kernel.apparmor_restrict_unprivileged_userns=1",
        ),
        ("bwrap: Can't mount proc", {"user.max_user_namespaces": "100"}, "In a container"),
    ],
)
def test_the_message_names_what_forbids_isolation(
    words: str, settings: dict[str, str], hint: str
) -> None:
    message = explain(words, settings=settings)
    assert words in message
    assert hint in message
    assert "--isolation none" in message


def test_this_machine_has_the_tools_that_a_start_needs() -> None:
    for name in ("setpriv", "nsenter", "unshare", "prlimit", "mount"):
        assert shutil.which(name), f"{name} of util-linux is missing"
    assert subprocess.run(["setpriv", "--pdeathsig", "KILL", "true"], check=True).returncode == 0
