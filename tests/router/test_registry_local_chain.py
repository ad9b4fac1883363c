from collections.abc import Sequence

import pytest
from support.local_sandbox import needs_bubblewrap, pool, running_registry

from sandgate_router.registry.local import isolated
from sandgate_router.registry.local.chain import build_chain


def position(command: Sequence[str], *words: str) -> int:
    """Return where these words stand side by side."""
    return next(
        index
        for index in range(len(command))
        if tuple(command[index : index + len(words)]) == words
    )


@pytest.mark.parametrize("own_uid", [None, 61200])
@pytest.mark.parametrize("enclosed", [True, False])
def test_every_link_asks_to_die_before_it_looks_whether_it_should(
    own_uid: int | None, *, enclosed: bool
) -> None:
    command = build_chain(
        gateway=42, enter=["nsenter"], own_uid=own_uid, enclosed=enclosed, bwrap="/usr/bin/bwrap"
    )
    assert command[:4] == ["nsenter", "setpriv", "--pdeathsig", "KILL"]
    assert command[-1] == "/usr/bin/bwrap"
    assert command.count("--pdeathsig") == 2
    looks = position(command, '[ "$PPID" = "$0" ] && exec "$@"', "42")
    if enclosed:
        # Its first process asks for the death signal, and never becomes another user.
        first = position(command, "--kill-child=KILL", "--", "/bin/sh", "-c")
        assert looks < command.index("unshare") < first
        assert "exec" not in command[first + 4]
        assert ("--user" in command) == (own_uid is None)
    if own_uid is not None:
        assert position(command, "--reuid", "61200", "--regid", "61200", "--clear-groups") > looks


@needs_bubblewrap
async def test_where_bubblewrap_alone_may_make_namespaces_it_is_used_alone_and_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def forbid(**members: object) -> list[str]:
        return ["/bin/false"] if members["enclosed"] else build_chain(**members)  # type: ignore[arg-type]

    monkeypatch.setattr(isolated, "build_chain", forbid)
    monkeypatch.setattr(isolated, "runs_as_root", lambda: False)
    async with running_registry(pool(warm=0)) as registry:
        assert registry.pools()[0].last_error is None
    assert "Only bubblewrap may make user namespaces" in caplog.text
