"""The Kubernetes project's own client, unmodified, over a cluster and our gateway.

It makes its claims in the cluster by itself, and reaches the sandboxes through the gateway,
which was never told of them. The sandboxes are scripted; what a runtime answers has its own
tests.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import kubernetes
import kubernetes_asyncio  # type: ignore[import-untyped]
import pytest
from k8s_agent_sandbox.async_sandbox_client import AsyncSandboxClient
from k8s_agent_sandbox.exceptions import SandboxNotFoundError, SandboxWarmPoolNotFoundError
from k8s_agent_sandbox.models import SandboxDirectConnectionConfig
from k8s_agent_sandbox.sandbox_client import SandboxClient
from support.fake_kube import FakeKube
from support.fake_kube.kinds import CLAIMS
from support.kube_gateway import KubeGateway, cluster, every_sandbox, kube_gateway
from support.scripted_upstream import UpstreamSide


async def execute(side: UpstreamSide) -> None:
    """Answer as a runtime that has run a command which prints where it ran."""
    while (await side.read_request())[0]:
        result = {"stdout": side.local_address, "stderr": "", "exit_code": 0}
        content = json.dumps(result).encode()
        side.send(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
            % (len(content), content)
        )


@pytest.fixture
async def kube() -> AsyncIterator[FakeKube]:
    async with cluster() as kube:
        yield kube


@pytest.fixture
def kubeconfig(kube: FakeKube, tmp_path: Path) -> str:
    """Return where the client finds the cluster. $KUBECONFIG it reads once, when imported."""
    return str(kube.kubeconfig(tmp_path))


@contextlib.contextmanager
def blocking(kubeconfig: str, connection: SandboxDirectConnectionConfig) -> Iterator[Any]:
    api: Any = kubernetes.config.new_client_from_config(kubeconfig)  # type: ignore[no-untyped-call]
    yield SandboxClient(connection_config=connection, api_client=api)
    api.close()


@pytest.fixture
async def gateway(kube: FakeKube) -> AsyncIterator[KubeGateway]:
    async with kube_gateway(kube) as gateway:
        yield gateway


@pytest.fixture
async def connection(gateway: KubeGateway) -> AsyncIterator[SandboxDirectConnectionConfig]:
    async with every_sandbox(execute) as sandbox:
        yield SandboxDirectConnectionConfig(
            api_url=f"http://127.0.0.1:{gateway.gateway.port}", server_port=sandbox.port
        )


async def test_its_blocking_client_creates_runs_lists_and_terminates(
    kube: FakeKube, kubeconfig: str, connection: SandboxDirectConnectionConfig
) -> None:
    def use() -> None:
        with blocking(kubeconfig, connection) as client:
            sandbox = client.create_sandbox("python", namespace="default", labels={"team": "x"})
            result = sandbox.commands.run("hostname -i")
            assert result.exit_code == 0
            assert result.stdout.startswith("127.1.")
            assert client.list_all_sandboxes(namespace="default") == [sandbox.claim_name]
            again = client.get_sandbox(sandbox.claim_name, namespace="default")
            assert again.sandbox_id == sandbox.sandbox_id
            assert again.commands.run("hostname -i").stdout == result.stdout
            sandbox.terminate()
            assert client.list_all_sandboxes(namespace="default") == []

    await asyncio.to_thread(use)
    assert kube.store.items(CLAIMS) == []


async def test_its_asyncio_client_does_the_same(
    kube: FakeKube, kubeconfig: str, connection: SandboxDirectConnectionConfig
) -> None:
    api = await kubernetes_asyncio.config.new_client_from_config(kubeconfig)
    async with api, AsyncSandboxClient(connection_config=connection, api_client=api) as client:  # type: ignore[var-annotated]
        sandbox = await client.create_sandbox("python", namespace="default")
        assert (await sandbox.commands.run("hostname -i")).exit_code == 0
        await sandbox.terminate()
    assert kube.store.items(CLAIMS) == []


async def test_it_is_told_of_a_pool_that_there_is_none(
    kube: FakeKube, kubeconfig: str, connection: SandboxDirectConnectionConfig
) -> None:
    def use() -> None:
        with blocking(kubeconfig, connection) as client:
            with pytest.raises(SandboxWarmPoolNotFoundError):
                client.create_sandbox("other", namespace="default")
            with pytest.raises(SandboxNotFoundError):
                client.get_sandbox("none", namespace="default", resolve_timeout=1)

    await asyncio.to_thread(use)
    assert kube.store.items(CLAIMS) == []


async def test_its_claims_are_listed_and_released_by_the_gateway(
    kube: FakeKube,
    kubeconfig: str,
    gateway: KubeGateway,
    connection: SandboxDirectConnectionConfig,
) -> None:
    def create() -> str:
        with blocking(kubeconfig, connection) as client:
            sandbox = client.create_sandbox(
                "python", namespace="default", shutdown_after_seconds=300
            )
            name: str = sandbox.claim_name
            return name

    name = await asyncio.to_thread(create)
    listed = (await gateway.client.get("/v1/claims")).json()["claims"]
    assert [(claim["claim"], claim["state"]) for claim in listed] == [(name, "ready")]
    assert (await gateway.client.delete(f"/v1/claims/default/{name}")).status_code == 204
    assert kube.store.items(CLAIMS) == []
