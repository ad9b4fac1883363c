"""Gateways over one fake cluster, whose sandboxes are scripted and on loopback.

Loopback is never dialled on the cluster's word, so here a policy is injected that has
127.0.0.0/8 stand for the network of the pods, but for 127.9.0.0/16, which is outside.
"""

import contextlib
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
from support.dns_gateway import LoopbackPolicy
from support.fake_kube import FakeKube, fake_kube
from support.fake_kube.kinds import POOLS, TEMPLATES
from support.fake_kube.objects import template, warm_pool
from support.running_gateway import RunningGateway, running_gateway
from support.scripted_upstream import Script, ScriptedUpstream, answer_ok

from sandgate_router.connect import Connector
from sandgate_router.control.app import build_control_app
from sandgate_router.denied import Denied
from sandgate_router.kube.access import Access, TokenSource
from sandgate_router.pod_ip import PodIp
from sandgate_router.probes import Readiness
from sandgate_router.registry.kubernetes import KubernetesRegistry
from sandgate_router.resolve import Resolver

POOL = "python"


@dataclass
class KubeGateway:
    """One replica."""

    gateway: RunningGateway
    registry: KubernetesRegistry
    client: httpx.AsyncClient

    async def claim(self, **members: Any) -> dict[str, Any]:
        """Claim through it; return the answer."""
        key = members.pop("key", None)
        headers = {} if key is None else {"idempotency-key": key}
        answer = await self.client.post(
            "/v1/claims", json={"pool": POOL} | members, headers=headers
        )
        assert answer.status_code == 201, answer.text
        claim: dict[str, Any] = answer.json()
        return claim

    async def get(self, claim: dict[str, Any], port: int, path: str = "/") -> httpx.Response:
        """Send a request to a claim's sandbox, on the port where the scripted one listens."""
        fields = {
            "x-sandbox-id": claim["sandbox"],
            "x-sandbox-namespace": claim["namespace"],
            "x-sandbox-port": str(port),
        }
        return await self.client.get(path, headers=fields)


@contextlib.asynccontextmanager
async def cluster(*, replicas: int = 2, controller: bool = True) -> AsyncIterator[FakeKube]:
    """Run a fake cluster with one pool in `default`, its members ready."""
    async with fake_kube(controller=controller) as kube:
        kube.store.create(TEMPLATES, "default", template())
        kube.store.create(POOLS, "default", warm_pool(POOL, replicas=replicas))
        if controller:
            kube.controller.reconcile()
        yield kube


def build_registry(kube: FakeKube, **members: Any) -> KubernetesRegistry:
    """Return a registry over the cluster."""
    access = Access(kube.url, None, TokenSource(members.pop("token", "")))
    return KubernetesRegistry(access, LoopbackPolicy(), **members)


@contextlib.asynccontextmanager
async def started(kube: FakeKube, **members: Any) -> AsyncIterator[KubernetesRegistry]:
    """Run a registry over the cluster."""
    registry = build_registry(kube, **members)
    await registry.start()
    try:
        yield registry
    finally:
        await registry.close()


@contextlib.asynccontextmanager
async def kube_gateway(kube: FakeKube, **settings: str) -> AsyncIterator[KubeGateway]:
    """Run one replica; keyword arguments are settings by the name of their variable."""
    readiness = Readiness()
    readiness.mark_ready()
    async with contextlib.AsyncExitStack() as stack:
        registry = await stack.enter_async_context(started(kube))
        app = build_control_app(registry, readiness=readiness, loopback=True)
        gateway = await stack.enter_async_context(running_gateway(app, **settings))
        before = gateway.gateway.relay.connector
        connector = Connector(
            resolver=Resolver(
                registry,
                clock=gateway.gateway.clock,
                denied=Denied(()),
                pod_ip=PodIp("ignore", LoopbackPolicy()),
            ),
            pool=before.pool,
            metrics=before.metrics,
            cluster_domain=before.cluster_domain,
        )
        registry.subscribe(connector.forget)
        registry.watch(connector.pool)
        gateway.gateway.relay.connector = connector
        client = await stack.enter_async_context(
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{gateway.port}", timeout=60)
        )
        yield KubeGateway(gateway, registry, client)


@contextlib.asynccontextmanager
async def every_sandbox(script: Script = answer_ok) -> AsyncIterator[ScriptedUpstream]:
    """Listen on one port of every address of loopback: what answers there is each sandbox."""
    listener = socket.create_server(("0.0.0.0", 0), backlog=1024)
    async with ScriptedUpstream(script).running(listener) as sandbox:
        yield sandbox
