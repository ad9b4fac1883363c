"""A gateway over a DNS server and sandboxes that a test scripts, all of them on loopback.

Loopback is never dialled on the word of DNS, so here an injected policy has it stand for the
network of the sandboxes, but for 127.9.0.0/16, which stands for what is outside.
tests/system/test_system_dns.py shows the real policy, between networks.
"""

import contextlib
import ipaddress
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from support.running_gateway import RunningGateway, running_gateway
from support.scripted_dns import Script as DnsScript
from support.scripted_dns import ScriptedDns, scripted_dns
from support.scripted_upstream import Script, ScriptedUpstream, answer_ok

from sandgate_router.addresses import IpAddress, Verdict, is_never
from sandgate_router.connect import Connector
from sandgate_router.denied import Denied
from sandgate_router.pod_ip import PodIp, PodIpMode
from sandgate_router.registry.dns import DnsRegistry
from sandgate_router.registry.dns_lookup import StubResolver
from sandgate_router.resolve import Resolver

SANDBOXES = ipaddress.ip_network("127.0.0.0/8")
OUTSIDE = ipaddress.ip_network("127.9.0.0/16")


class LoopbackPolicy:
    """The policy of these tests."""

    def judge(self, address: IpAddress) -> Verdict:
        """Allow loopback, and nothing that is never dialled otherwise."""
        if address in SANDBOXES:
            return "outside" if address in OUTSIDE else "allowed"
        return "never" if is_never(address) else "outside"


@dataclass
class DnsGateway:
    """All that runs: the gateway, the DNS server, and a sandbox at 127.0.0.1."""

    gateway: RunningGateway
    dns: ScriptedDns
    sandbox: ScriptedUpstream
    registry: DnsRegistry

    @property
    def port(self) -> int:
        return self.gateway.port

    def name(self, sandbox: str, *addresses: str, ttl: int = 30, namespace: str = "default") -> str:
        """Have a name resolve to addresses; return it."""
        name = f"{sandbox}.{namespace}.svc.cluster.local."
        self.dns.scripts[name] = DnsScript(a=addresses, ttl=ttl)
        return name

    def assert_untouched(self) -> None:
        """Nothing was asked, dialled or sent."""
        assert self.dns.queries == []
        assert self.sandbox.sides == []
        assert self.gateway.dials == 0


@contextlib.asynccontextmanager
async def dns_gateway(
    folder: Path,
    script: Script = answer_ok,
    *,
    pod_ip: PodIpMode = "ignore",
    denied: tuple[str, ...] = (),
    search: str = "example",
    **settings: str,
) -> AsyncIterator[DnsGateway]:
    """Run all of it; other keyword arguments are settings by the name of their variable."""
    async with (
        scripted_dns() as server,
        ScriptedUpstream(script).running() as sandbox,
        running_gateway(**settings) as gateway,
    ):
        policy = LoopbackPolicy()
        lookup = StubResolver(server.resolv_conf(folder, f"search {search}"), port=server.port)
        registry = DnsRegistry(
            lookup, policy, cluster_domain="cluster.local", clock=gateway.gateway.clock
        )
        before = gateway.gateway.relay.connector
        connector = Connector(
            resolver=Resolver(
                registry,
                clock=gateway.gateway.clock,
                denied=Denied(denied),
                pod_ip=PodIp(pod_ip, policy),
            ),
            pool=before.pool,
            metrics=before.metrics,
            cluster_domain=before.cluster_domain,
        )
        registry.subscribe(connector.forget)
        gateway.gateway.relay.connector = connector
        try:
            yield DnsGateway(gateway, server, sandbox, registry)
        finally:
            await registry.close()
