"""`sandgate router --registry dns` as it stands in a cluster: another network, real addresses.

The gateway runs in one network, DNS and the sandboxes in another. It reads the resolv.conf that
it finds, and keeps to the addresses that its settings allow.
"""

import asyncio
import contextlib
import signal
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.networks import Network, networks_fault, two_networks
from support.raw_client import Answer, RawClient, request
from support.scripted_dns import Script, ScriptedDns, scripted_dns
from support.scripted_upstream import ScriptedUpstream, answer_ok
from support.system_gateway import SANDGATE

NAME = "sb.default.svc.cluster.local."


@pytest.fixture(autouse=True)
def need_networks() -> None:
    if (fault := networks_fault()) is not None:
        pytest.skip(fault)


@dataclass
class Cluster:
    """A gateway at 10.77.0.1, and two sandboxes and DNS behind the cable."""

    near: Network
    process: "subprocess.Popen[bytes]"
    dns: ScriptedDns
    listeners: dict[str, ScriptedUpstream]
    """The two sandboxes by their addresses, and what shares the gateway's as `neighbour`."""

    @property
    def dialled(self) -> list[str]:
        """What has been connected to."""
        return [name for name, listener in self.listeners.items() if listener.sides]

    async def ask(self, *lines: str, sandbox: str = "sb") -> Answer:
        sock = await asyncio.to_thread(self.near.connect, "127.0.0.1", 8080)
        reader, writer = await asyncio.open_connection(sock=sock)
        client = RawClient(reader, writer)
        try:
            more = "".join(f"{line}\r\n" for line in lines)
            await client.send(request(sandbox=sandbox, more=more))
            return await client.read_answer()
        finally:
            client.end()
            await writer.wait_closed()


@contextlib.asynccontextmanager
async def cluster(folder: Path, **environ: str) -> AsyncIterator[Cluster]:
    conf = folder / "resolv.conf"
    conf.write_text("search default.svc.cluster.local\nnameserver 10.77.0.2\noptions ndots:5\n")
    async with contextlib.AsyncExitStack() as stack:
        near, far = stack.enter_context(two_networks())
        sockets = far.listen("10.77.0.2", 53), far.bind_udp("10.77.0.2", 53)
        server = await stack.enter_async_context(scripted_dns(sockets))
        listeners = {}
        for name, network, host in (
            ("10.77.0.2", far, "10.77.0.2"),
            ("10.77.0.3", far, "10.77.0.3"),
            ("neighbour", near, "0.0.0.0"),
        ):
            running = ScriptedUpstream(answer_ok).running(network.listen(host, 8888))
            listeners[name] = await stack.enter_async_context(running)
        errors = stack.enter_context((folder / "errors").open("wb"))
        process = near.start(
            [
                *("unshare", "--mount", "sh", "-c"),
                'mount --bind "$0" /etc/resolv.conf && exec "$@"',
                *(str(conf), SANDGATE, "router", "--listen", "0.0.0.0:8080"),
            ],
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "SANDGATE_DRAIN_DELAY": "0", **environ},
            stdout=subprocess.PIPE,
            stderr=errors,
        )
        stack.callback(process.wait)
        stack.callback(process.kill)
        assert process.stdout is not None
        stack.callback(process.stdout.close)
        line = await asyncio.to_thread(process.stdout.readline)
        assert line == b"listening on http://0.0.0.0:8080\n", (folder / "errors").read_text()
        yield Cluster(near, process, server, listeners)


OPEN = {"ALLOW_UNAUTHENTICATED_ROUTER": "true"}


async def test_a_sandbox_is_reached_by_the_name_that_the_clusters_dns_knows(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path, **OPEN) as here:
        here.dns.scripts[NAME] = Script(a=("10.77.0.2",))
        assert (await here.ask()).body == b"ok"
        assert here.dns.queries == [(NAME, "A", "udp")]
        assert here.dialled == ["10.77.0.2"]
        assert (await here.ask(sandbox="other")).code == "dns_error"
        assert (await here.ask(sandbox="kubernetes")).code == "not_allowed_here"
        assert here.dns.queries[1:] == [("other.default.svc.cluster.local.", "A", "udp")]


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.77.0.1", "10.77.0.9", "169.254.169.254", "192.0.2.1", "0.0.0.0"),
        *("100.100.100.200",),
    ],
)
async def test_no_name_and_no_field_leads_to_the_gateway_itself_or_out_of_the_networks(
    tmp_path: Path, address: str
) -> None:
    async with cluster(tmp_path, **OPEN) as here:
        here.dns.scripts[NAME] = Script(a=(address,))
        answer = await here.ask()
        assert (answer.status, answer.code) == (502, "destination_prohibited")
        answer = await here.ask(f"X-Sandbox-Pod-IP: {address}")
        outside = address == "192.0.2.1"
        assert answer.status == (403 if outside else 400)
        assert answer.code == ("not_allowed_here" if outside else "invalid_pod_ip")
        assert here.dialled == []


async def test_without_tokens_of_single_sandboxes_the_address_of_the_pod_is_trusted(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path, ROUTER_AUTH_TOKEN="secret") as here:
        bearer = "Authorization: Bearer secret"
        assert (await here.ask("X-Sandbox-Pod-IP: 10.77.0.3")).status == 401
        assert (await here.ask(bearer, "X-Sandbox-Pod-IP: 10.77.0.3")).body == b"ok"
        assert here.dialled == ["10.77.0.3"]
        assert here.dns.queries == []


async def test_narrower_networks_leave_the_rest_out(tmp_path: Path) -> None:
    narrow = {"SANDGATE_UPSTREAM_NETWORKS": "10.77.0.2/32", "SANDGATE_DENIED": "", **OPEN}
    async with cluster(tmp_path, **narrow) as here:
        here.dns.scripts[NAME] = Script(a=("10.77.0.3",))
        assert (await here.ask()).code == "destination_prohibited"
        assert (await here.ask("X-Sandbox-Pod-IP: 10.77.0.3")).code == "not_allowed_here"
        assert (await here.ask("X-Sandbox-Pod-IP: 10.77.0.2")).body == b"ok"
        assert here.dialled == ["10.77.0.2"]


async def test_it_ends_in_order_while_questions_are_under_way(tmp_path: Path) -> None:
    async with cluster(tmp_path, **OPEN) as here:
        here.dns.scripts[NAME] = Script(silent=True)
        asking = asyncio.create_task(here.ask())
        async with asyncio.timeout(10):
            while not here.dns.held:
                await asyncio.sleep(0.01)
        here.process.send_signal(signal.SIGTERM)
        assert (await asking).status == 504
        assert await asyncio.to_thread(here.process.wait, 30) == 0
        assert "Traceback" not in (tmp_path / "errors").read_text()


def test_without_a_resolver_it_says_so_and_does_not_start(tmp_path: Path) -> None:
    conf = tmp_path / "resolv.conf"
    conf.write_text("search example\n")
    done = subprocess.run(
        [
            *("unshare", "--mount", "sh", "-c"),
            'mount --bind "$0" /etc/resolv.conf && exec "$@"',
            *(str(conf), SANDGATE, "router", "--listen", "127.0.0.1:0"),
        ],
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **OPEN},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        "sandgate: /etc/resolv.conf: no usable nameserver: no nameservers"
    )
