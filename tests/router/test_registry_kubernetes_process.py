"""`sandgate router --registry kubernetes`, as a process, over a cluster in another thread."""

import contextlib
import itertools
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
from support.fake_kube import FakeKube, Rule, User, fake_kube_in_thread
from support.fake_kube.kinds import POOLS, TEMPLATES
from support.fake_kube.objects import template, warm_pool
from support.fake_kube.server import ThreadedKube


@contextlib.contextmanager
def router(kubeconfig: Path, **settings: str) -> Iterator[str]:
    """Run a gateway until the end of the context; yield its URL."""
    environ = {
        "PATH": os.environ["PATH"],
        "KUBECONFIG": str(kubeconfig),
        "ALLOW_UNAUTHENTICATED_ROUTER": "true",
        "SANDGATE_DRAIN_DELAY": "0",
        **settings,
    }
    command = [sys.executable, "-m", "sandgate.cli", "router", "--registry", "kubernetes"]
    command += ["--listen", "127.0.0.1:0", "--metrics-listen", ""]
    process = subprocess.Popen(
        command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        match = re.search(r"listening on (\S+)", process.stdout.readline())
        assert match is not None, process.stderr.read()
        yield match[1]
    finally:
        process.terminate()
        process.communicate(timeout=30)
    assert process.returncode == 0


def fill(server: ThreadedKube) -> None:
    """Make a pool, whose members have addresses that a cluster's have."""

    def create(kube: FakeKube) -> None:
        numbers = itertools.count(1)
        kube.controller.next_address = lambda: f"10.1.2.{next(numbers)}"
        kube.store.create(TEMPLATES, "default", template())
        kube.store.create(POOLS, "default", warm_pool("python", replicas=2))

    server.do(create)


def callers(folder: Path) -> Path:
    """Write a file with the caller `ci`, whose token is `t`."""
    path = folder / "callers.yaml"
    digest = "e3b98a4da31a127d4bde6e43033f66ba274cab0eb7eb1c70ec41402bf6273dd8"
    path.write_text(
        f"callers: [{{name: ci, sha256: {digest}, namespaces: [default], rights: [claim, read]}}]"
    )
    return path


def test_it_claims_with_a_callers_token(tmp_path: Path) -> None:
    with fake_kube_in_thread() as server:
        fill(server)
        kubeconfig = server.kube.kubeconfig(tmp_path)
        settings = {"SANDGATE_CALLERS": str(callers(tmp_path)), "SANDGATE_NAMESPACES": "default"}
        with (
            router(kubeconfig, **settings) as url,
            httpx.Client(base_url=url, headers={"authorization": "Bearer t"}) as client,
        ):
            assert client.get("/readyz").json() == {"status": "ok"}
            answer = client.post("/v1/claims", json={"pool": "python"})
            assert answer.status_code == 201, answer.text
            pools = client.get("/v1/pools").json()["pools"]
            assert [(pool["name"], pool["max"]) for pool in pools] == [("python", None)]
            name = answer.json()["claim"]
            assert client.delete(f"/v1/claims/default/{name}").status_code == 204


def test_without_rights_it_is_alive_and_says_what_it_may_not(tmp_path: Path) -> None:
    with fake_kube_in_thread() as server:
        users = {"weak": User("gateway", rules=(Rule(("get",), "*", "*"),))}
        server.do(lambda kube: kube.rbac.users.update(users))
        with router(server.kube.kubeconfig(tmp_path, token="weak")) as url:
            assert httpx.get(f"{url}/healthz").status_code == 200
            answer = httpx.get(f"{url}/readyz")
            assert answer.status_code == 503
            assert "forbids: list sandboxes.agents.x-k8s.io" in answer.json()["detail"]


def test_without_a_cluster_it_says_what_to_set() -> None:
    environ = {"PATH": os.environ["PATH"], "ALLOW_UNAUTHENTICATED_ROUTER": "true"}
    command = [sys.executable, "-m", "sandgate.cli", "router", "--registry", "kubernetes"]
    done = subprocess.run(
        command, env=environ, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert "set KUBECONFIG" in done.stderr
