"""curl through the gateway: what anybody sees who has no client of ours.

The texts of refusals are those that users of the Kubernetes project's router know.
"""

import json
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from support.system_gateway import SystemGateway, sandgate_up, wait_until

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


@pytest.fixture(scope="module")
def open_gateway(best_isolation: str) -> Iterator[SystemGateway]:
    """Yield a gateway that asks nobody."""
    with sandgate_up("--auth", "none", isolation=best_isolation) as gateway:
        yield gateway


def of(sandbox: Sandbox, **fields: str) -> list[str]:
    """Return the fields that a request for this sandbox needs, its token included."""
    assert sandbox.record.token is not None
    return routing(ID=sandbox.id, Token=sandbox.record.token, **fields)


def expect_refusal(answer: Answer, status: int, code: str, detail: str) -> None:
    assert answer.status == status, answer
    assert answer.fields["content-type"] == "application/json"
    assert answer.fields["x-sandbox-error"] == code
    assert answer.json() == {"detail": detail, "code": code, "reached": "no", "retry_safe": True}


def test_a_command_runs_by_a_plain_post(gateway: SystemGateway, sandbox: Sandbox) -> None:
    fields = of(sandbox, Namespace="default", Port="8888")
    answer = curl(f"{gateway.url}/execute", *fields, *ECHO)
    assert answer.status == 200
    assert answer.fields["content-type"] == "application/json"
    assert "x-sandbox-error" not in answer.fields
    assert answer.json() == {"stdout": "hello\n", "stderr": "", "exit_code": 0}


def test_namespace_and_port_may_be_left_out(gateway: SystemGateway, sandbox: Sandbox) -> None:
    answer = curl(f"{gateway.url}/execute", *of(sandbox), *ECHO)
    assert answer.json()["stdout"] == "hello\n"


def test_the_token_may_come_as_a_bearer_token(gateway: SystemGateway, sandbox: Sandbox) -> None:
    bearer = ("-H", f"Authorization: Bearer {sandbox.record.token}")
    answer = curl(f"{gateway.url}/execute", *routing(ID=sandbox.id), *bearer, *ECHO)
    assert answer.json()["stdout"] == "hello\n"


def test_another_sandbox_s_token_is_forbidden_whether_there_is_such_a_sandbox_or_not(
    gateway: SystemGateway, sandbox: Sandbox
) -> None:
    with gateway.sandboxes() as sandboxes, sandboxes.claim("python") as other:
        token = routing(Token=other.record.token or "")
        for name in (sandbox.id, "nobody"):
            answer = curl(f"{gateway.url}/execute", *routing(ID=name), *token, *ECHO)
            expect_refusal(answer, 403, "forbidden", "Forbidden.")


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
def test_without_a_token_a_sandbox_that_exists_and_one_that_does_not_answer_alike(
    gateway: SystemGateway, sandbox: Sandbox, namespace: str
) -> None:
    for name in (sandbox.id, "nobody"):
        answer = curl(f"{gateway.url}/execute", *routing(ID=name, Namespace=namespace), *ECHO)
        expect_refusal(answer, 401, "unauthenticated", "Missing or invalid credentials.")


@pytest.mark.parametrize("namespace", ["default", "elsewhere"])
def test_where_nobody_is_asked_an_unknown_sandbox_is_not_found(
    open_gateway: SystemGateway, namespace: str
) -> None:
    answer = curl(f"{open_gateway.url}/execute", *routing(ID="nobody", Namespace=namespace), *ECHO)
    detail = "No such sandbox; claim one with POST /v1/claims."
    expect_refusal(answer, 404, "sandbox_not_found", detail)


def test_where_nobody_is_asked_the_id_is_enough_and_a_claim_has_no_token(
    open_gateway: SystemGateway,
) -> None:
    with open_gateway.sandboxes() as sandboxes, sandboxes.claim("python") as sandbox:
        assert sandbox.record.token is None
        answer = curl(f"{open_gateway.url}/execute", *routing(ID=sandbox.id), *ECHO)
        assert answer.json()["stdout"] == "hello\n"
        assert sandboxes.get(sandbox.claim).commands.run("echo hi").stdout == "hi\n"


def test_a_claim_is_made_and_released_by_hand(gateway: SystemGateway) -> None:
    claims = f"{gateway.url}/v1/claims"
    body = ("-H", "Content-Type: application/json", "-d", '{"pool": "python"}')
    made = curl(claims, *body)
    assert made.status == 201
    claim = made.json()
    fields = routing(ID=claim["sandbox"], Token=claim["token"])
    answer = curl(f"{gateway.url}/execute", *fields, *ECHO)
    assert answer.json()["stdout"] == "hello\n"
    assert curl(f"{claims}/default/{claim['claim']}", "-X", "DELETE").status == 204
    answer = curl(f"{gateway.url}/execute", *fields, *ECHO)
    detail = "No such sandbox; claim one with POST /v1/claims."
    expect_refusal(answer, 404, "sandbox_not_found", detail)


@isolated_only
def test_a_server_on_another_port_inside_answers(gateway: SystemGateway, sandbox: Sandbox) -> None:
    sandbox.files.write("site/page.txt", "from inside")
    command = "sh -c 'cd site; exec python3 -m http.server -b 127.0.0.1 3000 >log 2>&1 &'"
    posted = ("-H", "Content-Type: application/json", "-d", json.dumps({"command": command}))
    assert curl(f"{gateway.url}/execute", *of(sandbox), *posted).status == 200
    page = f"{gateway.url}/page.txt"
    fields = of(sandbox, Port="3000")
    wait_until(lambda: curl(page, *fields).status == 200)
    answer = curl(page, *fields)
    assert answer.body == "from inside"
    assert "SimpleHTTP" in answer.fields["server"]
    # The port that nothing listens on is the sandbox's own, too.
    answer = curl(page, *of(sandbox, Port="3001"))
    detail = f"Could not connect to the backend sandbox: {sandbox.id}"
    expect_refusal(answer, 502, "connection_refused", detail)


@pytest.mark.parametrize("isolation", ["none"], indirect=True)
@pytest.mark.parametrize("port", ["3000", "80", "22", "8889"])
def test_an_un_isolated_sandbox_serves_no_other_port(
    gateway: SystemGateway, sandbox: Sandbox, port: str
) -> None:
    answer = curl(f"{gateway.url}/", *of(sandbox, Port=port))
    assert answer.status == 403
    assert answer.fields["x-sandbox-error"] == answer.json()["code"] == "not_allowed_here"
    assert f"Port {port} is not served" in answer.json()["detail"]
    assert answer.json()["reached"] == "no"
