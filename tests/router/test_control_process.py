"""`sandgate up` with a file of callers, as a process."""

import hashlib
import json
import signal
import threading
import time
from pathlib import Path

import httpx
from support.system_gateway import run_sandgate, sandgate_up


def write_callers(path: Path, *tokens: str) -> None:
    callers = [
        {
            "name": f"c{number}",
            "sha256": hashlib.sha256(token.encode()).hexdigest(),
            "namespaces": ["*"],
            "rights": ["admin"],
        }
        for number, token in enumerate(tokens)
    ]
    path.write_text(json.dumps({"callers": callers}))  # JSON is YAML


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def test_with_a_file_of_callers_a_token_is_asked_for_even_on_loopback(tmp_path: Path) -> None:
    path = tmp_path / "callers.yaml"
    write_callers(path, "first")
    with sandgate_up(isolation="none", environ={"SANDGATE_CALLERS": str(path)}) as gateway:
        pools = f"{gateway.url}/v1/pools"
        assert httpx.get(pools).status_code == 401
        assert httpx.get(pools, headers=bearer("first")).status_code == 200
        write_callers(path, "second", "third")
        deadline = time.monotonic() + 30
        while httpx.get(pools, headers=bearer("second")).status_code != 200:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert httpx.get(pools, headers=bearer("first")).status_code == 401


def test_the_token_of_a_claim_renews_and_releases_it_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "callers.yaml"
    write_callers(path, "secret")
    with (
        sandgate_up(isolation="none", environ={"SANDGATE_CALLERS": str(path)}) as gateway,
        httpx.Client(base_url=gateway.url, timeout=60) as client,
    ):

        def claim(name: str) -> dict[str, str]:
            body = {"pool": "python", "name": name}
            made = client.post("/v1/claims", json=body, headers=bearer("secret")).json()
            return {"x-sandbox-token": made["token"]}

        ours, theirs = claim("ours"), claim("theirs")
        assert client.post("/v1/claims/default/ours/renew", headers=theirs).status_code == 404
        renewed = client.post("/v1/claims/default/ours/renew", headers=ours).json()
        fields = {"x-sandbox-token": renewed["token"]}
        used = client.get("/", headers=fields | {"x-sandbox-id": renewed["sandbox"]})
        assert used.status_code == 200
        assert client.delete("/v1/claims/default/ours", headers=fields).status_code == 204
        listed = client.get("/v1/claims", headers=bearer("secret")).json()["claims"]
        assert [shown["claim"] for shown in listed] == ["theirs"]
        gateway.signal(signal.SIGINT)  # it writes its last lines before it ends
        assert gateway.wait() == 0, gateway.errors()
        audit = [line for line in gateway.errors().splitlines() if " sandgate.audit " in line]
    assert [line.split()[2] for line in audit] == [
        "claim.created",
        "claim.created",
        "request.refused",
        "claim.renewed",
        "claim.released",
    ]


def test_a_file_that_cannot_be_used_keeps_the_gateway_from_starting(tmp_path: Path) -> None:
    path = tmp_path / "callers.yaml"
    path.write_text("callers: [{name: ci, rights: [write]}]")
    done = run_sandgate("up", environ={"SANDGATE_CALLERS": str(path)})
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        f"sandgate: callers file {path}: caller 1 (ci): `sha256` is missing",
        f"sandgate: callers file {path}: caller 1 (ci): `namespaces` is missing",
    ]


def test_a_gateway_that_is_told_to_stop_ends_its_streams_of_events_and_goes() -> None:
    begun, lines = threading.Event(), list[str]()

    def follow(url: str) -> None:
        with httpx.stream("GET", f"{url}/v1/events", timeout=60) as answer:
            for line in answer.iter_lines():  # raises unless the end is clean
                lines.append(line)
                begun.set()

    with sandgate_up(isolation="none", environ={"SANDGATE_DRAIN_DELAY": "0"}) as gateway:
        following = threading.Thread(target=follow, args=(gateway.url,))
        following.start()
        assert begun.wait(30)
        with httpx.Client(base_url=gateway.url, timeout=60) as client:
            made = client.post("/v1/claims", json={"pool": "python"}).json()
            client.delete(f"/v1/claims/default/{made['claim']}")
        gateway.signal(signal.SIGTERM)
        assert gateway.wait() == 0, gateway.errors()
        following.join(30)
        assert not following.is_alive()
        assert "Traceback" not in gateway.errors()
    kinds = [line for line in lines if line.startswith("event: claim.")]
    assert kinds[:2] == ["event: claim.created", "event: claim.released"]
