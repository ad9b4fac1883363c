"""A pool with `network: host`: the machine's network inside, and nothing else of the machine."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.local_sandbox import Inside, needs_bubblewrap, pool, request

from sandgate_router.config import BadConfig, Config
from sandgate_router.errors import NotAllowedHere
from sandgate_router.registry.local import LocalRegistry, PoolsFile, build_local_registry
from sandgate_router.registry.local.pools import Network

ASK = """
import socket, sys
try:
    with socket.create_connection(("127.0.0.1", {port}), 5) as connection:
        print(connection.recv(99).decode())
except OSError as error:
    print(type(error).__name__)
"""


@contextlib.asynccontextmanager
async def sandbox(network: Network) -> AsyncIterator[Inside]:
    registry = LocalRegistry([pool(network=network)], host_network=True)
    await registry.start()
    try:
        yield Inside(registry, await registry.claim(request()))
    finally:
        await registry.close()


@contextlib.asynccontextmanager
async def machine_server() -> AsyncIterator[int]:
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"the machine")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


@needs_bubblewrap
@pytest.mark.parametrize(
    ("network", "answer"), [("host", "the machine\n"), ("none", "ConnectionRefusedError\n")]
)
async def test_only_a_pool_with_network_host_reaches_the_machine(
    network: Network, answer: str
) -> None:
    async with machine_server() as port, sandbox(network) as inside:
        assert await inside.python(ASK.format(port=port)) == answer


@needs_bubblewrap
async def test_with_network_host_the_network_alone_is_shared() -> None:
    async with sandbox("host") as inside:
        kinds = ("net", "user", "pid", "mnt", "ipc", "uts", "cgroup")
        shown = await inside.sh(
            f"cd /proc/self/ns && for n in {' '.join(kinds)}; do readlink $n; done"
        )
        shared = {
            kind
            for kind, name in zip(kinds, shown.split(), strict=True)
            if name == os.readlink(f"/proc/self/ns/{kind}")
        }
        assert shared == {"net"}


@needs_bubblewrap
async def test_with_network_host_names_are_found_as_on_the_machine() -> None:
    async with sandbox("host") as inside:
        resolver = Path("/etc/resolv.conf")
        if resolver.is_file():
            assert await inside.sh("cat /etc/resolv.conf") == resolver.read_text()
        assert "hosts: files dns" in await inside.sh("cat /etc/nsswitch.conf")
        assert "127.0.0.1" in await inside.sh("getent ahostsv4 localhost")


@needs_bubblewrap
async def test_with_network_host_no_other_port_is_served() -> None:
    async with sandbox("host") as inside:
        assert await inside.sh("echo works") == "works\n"
        with pytest.raises(NotAllowedHere, match="sandboxes with network host serve port 8888"):
            inside.endpoint(3000)


def test_network_host_needs_callers_with_tokens(tmp_path: Path) -> None:
    file = tmp_path / "pools.yaml"
    file.write_text("pools:\n- {name: py, network: host}\n")
    settings = {"SANDGATE_LISTEN": "127.0.0.1:0", "SANDGATE_POOLS": str(file)}
    config = Config.from_environ(settings, command="up")
    with pytest.raises(BadConfig, match=r"pool py: network host .* set SANDGATE_CALLERS"):
        build_local_registry(config)
    callers = Config.from_environ({**settings, "SANDGATE_CALLERS": "callers"}, command="up")
    assert build_local_registry(callers).pools()[0].name == "py"
    plain = Config.from_environ({**settings, "SANDGATE_ISOLATION": "none"}, command="up")
    assert build_local_registry(plain).pools()[0].isolation == "none"


async def test_a_file_that_changes_to_network_host_is_held_to_the_same() -> None:
    registry = LocalRegistry([pool()])
    with pytest.raises(BadConfig, match="SANDGATE_CALLERS"):
        await registry._fleet.apply(PoolsFile((pool(network="host"),)))
