"""The running control API is the one that openapi.yaml describes: schemathesis tries it.

It sends what the description allows and what it forbids, follows the links between operations,
and compares each status, field and body of the answers with what is described.
"""

import asyncio
import sys
from pathlib import Path

from support.control import KnownTokens, build_tokens, caller, running_control
from support.fake_registry import FakeRegistry

from sandgate_router.control.events import EventRing

SCHEMATHESIS = Path(sys.executable).with_name("schemathesis")
SETTINGS = Path(__file__).with_name("schemathesis.toml")


async def test_schemathesis_finds_no_failure(tmp_path: Path) -> None:
    registry = FakeRegistry(ready=10**9)
    events = EventRing()
    events.close()  # streams end at once: it would wait for a whole answer
    known = KnownTokens(caller("root", "admin", namespaces=["*"]))
    async with running_control(
        registry, callers=known, tokens=build_tokens(), events=events
    ) as control:
        url = f"http://127.0.0.1:{control.gateway.port}"
        process = await asyncio.create_subprocess_exec(
            *(SCHEMATHESIS, "--config-file", SETTINGS, "run", f"{url}/openapi.json", "--url", url),
            *("--header", "Authorization: Bearer root-token", "--no-color"),
            cwd=tmp_path,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
    report = output.decode()
    assert process.returncode == 0, report
    assert "No issues found" in report
    assert len({request.ports for request in registry.requests}) >= 5  # it got as far as claiming
