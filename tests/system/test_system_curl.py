"""curl through the gateway: what anybody sees who has no client of ours.

The texts of refusals are those that users of the Kubernetes project's router know.
"""

import json
import shutil
import subprocess
from dataclasses import dataclass
from typing import Any

import pytest
from support.system_gateway import SystemGateway, wait_until

from sandgate import Sandbox

CURL = shutil.which("curl") or "curl"

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")

isolated_only = pytest.mark.parametrize("isolation", ["bubblewrap"], indirect=True)

ECHO = ("-H", "Content-Type: application/json", "-d", '{"command": "echo hello"}')


@dataclass(frozen=True)
class Answer:
    """What curl printed."""

    status: int
    fields: dict[str, str]
    body: str

    def json(self) -> Any:
        return json.loads(self.body)


def curl(url: str, *arguments: str) -> Answer:
    done = subprocess.run(
        [CURL, "--silent", "--show-error", "--include", "--max-time", "60", *arguments, url],
        capture_output=True,
        check=True,
    )
    head, _, body = done.stdout.decode().replace("\r\n", "\n").partition("\n\n")
    status, *lines = head.splitlines()
    fields = {name.lower(): value.strip() for name, _, value in (x.partition(":") for x in lines)}
    return Answer(int(status.split()[1]), fields, body)


def routing(**fields: str) -> list[str]:
    return [word for name, value in fields.items() for word in ("-H", f"X-Sandbox-{name}: {value}")]


def expect_refusal(answer: Answer, status: int, code: str, detail: str) -> None:
    assert answer.status == status, answer
    assert answer.fields["content-type"] == "application/json"
    assert answer.fields["x-sandbox-error"] == code
    assert answer.json() == {"detail": detail, "code": code, "reached": "no", "retry_safe": True}


def test_a_command_runs_by_a_plain_post(gateway: SystemGateway, sandbox: Sandbox) -> None:
    fields = routing(ID=sandbox.id, Namespace="default", Port="8888")
    answer = curl(f"{gateway.url}/execute", *fields, *ECHO)
    assert answer.status == 200
    assert answer.fields["content-type"] == "application/json"
    assert "x-sandbox-error" not in answer.fields
    assert answer.json() == {"stdout": "hello\n", "stderr": "", "exit_code": 0}


def test_namespace_and_port_may_be_left_out(gateway: SystemGateway, sandbox: Sandbox) -> None:
    answer = curl(f"{gateway.url}/execute", *routing(ID=sandbox.id), *ECHO)
    assert answer.json()["stdout"] == "hello\n"


def test_a_request_without_the_header_is_told_which_one(gateway: SystemGateway) -> None:
    answer = curl(f"{gateway.url}/execute", *ECHO)
    expect_refusal(answer, 400, "sandbox_id_required", "X-Sandbox-ID header is required.")
    answer = curl(f"{gateway.url}/execute", *routing(Namespace="default", Port="8888"), *ECHO)
    expect_refusal(answer, 400, "sandbox_id_required", "X-Sandbox-ID header is required.")


@pytest.mark.parametrize("sandbox_id", ["Upper", "a_b", "-a", "a.b", "a/b", "x" * 64, "münchen"])
def test_a_bad_id_is_refused(gateway: SystemGateway, sandbox_id: str) -> None:
    answer = curl(f"{gateway.url}/execute", *routing(ID=sandbox_id), *ECHO)
    expect_refusal(answer, 400, "invalid_sandbox_id", "Invalid sandbox ID format.")


@pytest.mark.parametrize("namespace", ["Bad", "kube_system", "a.b", "..", "x" * 64])
def test_a_bad_namespace_is_refused(gateway: SystemGateway, namespace: str) -> None:
    answer = curl(f"{gateway.url}/execute", *routing(ID="some-box", Namespace=namespace), *ECHO)
    expect_refusal(answer, 400, "invalid_namespace", "Invalid namespace format.")


@pytest.mark.parametrize("port", ["0", "65536", "-1", "http", "8e3", "08888", "8888,80"])
def test_a_bad_port_is_refused(gateway: SystemGateway, port: str) -> None:
    answer = curl(f"{gateway.url}/execute", *routing(ID="some-box", Port=port), *ECHO)
    expect_refusal(answer, 400, "invalid_port", "Invalid port format.")


@pytest.mark.parametrize("namespace", ["default", "elsewhere"])
def test_an_unknown_sandbox_is_not_found(gateway: SystemGateway, namespace: str) -> None:
    answer = curl(f"{gateway.url}/execute", *routing(ID="nobody", Namespace=namespace), *ECHO)
    detail = "No such sandbox; claim one with POST /v1/claims."
    expect_refusal(answer, 404, "sandbox_not_found", detail)


def test_a_claim_is_made_and_released_by_hand(gateway: SystemGateway) -> None:
    claims = f"{gateway.url}/v1/claims"
    body = ("-H", "Content-Type: application/json", "-d", '{"pool": "python"}')
    made = curl(claims, *body)
    assert made.status == 201
    claim = made.json()
    answer = curl(f"{gateway.url}/execute", *routing(ID=claim["sandbox"]), *ECHO)
    assert answer.json()["stdout"] == "hello\n"
    assert curl(f"{claims}/default/{claim['claim']}", "-X", "DELETE").status == 204
    assert curl(f"{gateway.url}/execute", *routing(ID=claim["sandbox"]), *ECHO).status == 404


@isolated_only
def test_a_server_on_another_port_inside_answers(gateway: SystemGateway, sandbox: Sandbox) -> None:
    sandbox.files.write("site/page.txt", "from inside")
    command = "sh -c 'cd site; exec python3 -m http.server -b 127.0.0.1 3000 >log 2>&1 &'"
    posted = ("-H", "Content-Type: application/json", "-d", json.dumps({"command": command}))
    assert curl(f"{gateway.url}/execute", *routing(ID=sandbox.id), *posted).status == 200
    page = f"{gateway.url}/page.txt"
    fields = routing(ID=sandbox.id, Port="3000")
    wait_until(lambda: curl(page, *fields).status == 200)
    answer = curl(page, *fields)
    assert answer.body == "from inside"
    assert "SimpleHTTP" in answer.fields["server"]
    # The port that nothing listens on is the sandbox's own, too.
    answer = curl(page, *routing(ID=sandbox.id, Port="3001"))
    detail = f"Could not connect to the backend sandbox: {sandbox.id}"
    expect_refusal(answer, 502, "connection_refused", detail)


@pytest.mark.parametrize("isolation", ["none"], indirect=True)
@pytest.mark.parametrize("port", ["3000", "80", "22", "8889"])
def test_an_un_isolated_sandbox_serves_no_other_port(
    gateway: SystemGateway, sandbox: Sandbox, port: str
) -> None:
    answer = curl(f"{gateway.url}/", *routing(ID=sandbox.id, Port=port))
    assert answer.status == 403
    assert answer.fields["x-sandbox-error"] == answer.json()["code"] == "not_allowed_here"
    assert f"Port {port} is not served" in answer.json()["detail"]
    assert answer.json()["reached"] == "no"
