"""A local registry with real sandboxes, and a way to run code in one of them."""

import asyncio
import contextlib
import os
import shlex
import shutil
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from sandgate_router.names import DEFAULT_PORT, Label, Port
from sandgate_router.registry.base import Claim, ClaimRequest, Endpoint
from sandgate_router.registry.local import LocalRegistry, PoolSpec
from sandgate_router.registry.local.plain import PlainSandbox
from sandgate_router.registry.local.pools import LocalIsolation
from sandgate_router.target import Target

DEFAULT = Label("default")
POOL = Label("py")

needs_bubblewrap = pytest.mark.skipif(
    shutil.which("bwrap") is None, reason="bubblewrap is not installed"
)


def pool(**members: object) -> PoolSpec:
    """Return a pool of one warm member, changed by `members`."""
    chosen: dict[str, object] = {"name": POOL, "warm": 1, "max": 4, **members}
    return PoolSpec(**chosen)  # type: ignore[arg-type]


def request(**members: object) -> ClaimRequest:
    chosen: dict[str, object] = {"pool": POOL, "namespace": DEFAULT, **members}
    return ClaimRequest(**chosen)  # type: ignore[arg-type]


@contextlib.asynccontextmanager
async def running_registry(
    *pools: PoolSpec, isolation: LocalIsolation = "bubblewrap"
) -> AsyncIterator[LocalRegistry]:
    """Start a registry and close it at the end."""
    registry = LocalRegistry(pools or (pool(),), isolation=isolation)
    await registry.start()
    try:
        yield registry
    finally:
        await registry.close()


@contextlib.asynccontextmanager
async def claimed_sandbox(
    *, isolation: LocalIsolation = "bubblewrap", **members: object
) -> AsyncIterator["Inside"]:
    """Claim the one sandbox of a new registry."""
    async with running_registry(pool(**members), isolation=isolation) as registry:
        yield Inside(registry, await registry.claim(request()))


class Inside:
    """The inside of a claimed sandbox."""

    def __init__(self, registry: LocalRegistry, claim: Claim) -> None:
        self.registry = registry
        self.claim = claim

    def endpoint(self, port: int = DEFAULT_PORT) -> Endpoint:
        target = Target(self.claim.sandbox, self.claim.namespace, Port(port))
        endpoint = self.registry.endpoint(target)
        assert endpoint is not None
        return endpoint

    @property
    def runtime(self) -> int:
        """The process that serves it, where it is not isolated."""
        lease = self.registry._leases.get((self.claim.namespace, self.claim.name))
        assert lease is not None
        assert isinstance(lease.member, PlainSandbox)
        assert lease.member._process is not None
        return lease.member._process.pid

    def processes(self) -> set[int]:
        """Return that process and all below it."""
        return {self.runtime} | descendants(self.runtime)

    async def execute(self, *argv: str) -> tuple[int, str, str]:
        """Run a program; return its exit code, output and error output."""
        endpoint = self.endpoint()
        transport = httpx.AsyncHTTPTransport(uds=endpoint.path)
        fields = {
            "X-Sandbox-Expect-UID": str(endpoint.uid),
            "X-Sandbox-Expect-Name": endpoint.name,
        }
        async with httpx.AsyncClient(
            transport=transport, base_url="http://sandbox", headers=fields, timeout=60
        ) as client:
            answer = await client.post("/execute", json={"command": shlex.join(argv)})
        assert answer.status_code == 200, answer.text
        body = answer.json()
        return body["exit_code"], body["stdout"], body["stderr"]

    async def sh(self, script: str) -> str:
        """Run a shell script and return its output; its exit code must be 0."""
        code, out, err = await self.execute("/bin/sh", "-c", script)
        assert code == 0, (code, out, err)
        return out

    async def python(self, code: str) -> str:
        """Run Python code and return its output; its exit code must be 0."""
        exit_code, out, err = await self.execute("python3", "-c", code)
        assert exit_code == 0, (exit_code, out, err)
        return out

    async def dial(self, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, int]:
        """Ask the relay for a port; return the connection and the relay's answer."""
        endpoint = self.endpoint(port)
        reader, writer = await asyncio.open_unix_connection(endpoint.path)
        writer.write(struct.pack("!H", endpoint.relay_port))
        return reader, writer, (await reader.readexactly(1))[0]


def descendants(pid: int) -> set[int]:
    """Return the numbers of all processes below one."""
    found: set[int] = set()
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split():
                found |= {int(child)} | descendants(int(child))
    return found


def is_running(pid: int) -> bool:
    """Tell whether a process runs; a zombie does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in {"Z", "X"}
