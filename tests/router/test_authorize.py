"""Who may use the relay: decided by the head alone, before anything is looked up or dialled."""

import asyncio
import base64
import hashlib
import hmac
import json
import logging
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest
from prometheus_client.exposition import generate_latest
from support.raw_client import HANDSHAKE, Answer, connect, request
from support.relaying import relaying
from support.running_gateway import running_gateway
from support.scripted_upstream import SWITCHED, ScriptedUpstream, UpstreamSide, answer_ok, answering

from sandgate_router.authorize import Anyone, Authorizer, ByCapability, Grant, SharedToken
from sandgate_router.capability import Capabilities, KeySet
from sandgate_router.capability_text import Capability
from sandgate_router.errors import BadRequest, Forbidden, GatewayError, Unauthenticated
from sandgate_router.head import parse_request_head
from sandgate_router.names import Label, Port
from sandgate_router.scoped_token import ScopedTokens
from sandgate_router.target import parse_routing

SECRET = b"s" * 32
SCOPED_SECRET = b"0123456789abcdef0123456789abcdef"


def capabilities() -> Capabilities:
    return Capabilities(KeySet({"k1": SECRET}, signing="k1"), audience="sandgate", now=time.time)


def capability(sandbox: str = "sb", **members: object) -> Capability:
    now = int(time.time())
    said = Capability(
        audience="sandgate",
        namespace=Label("default"),
        claim=Label("tour"),
        sandbox=Label(sandbox),
        uid="u-1",
        ports=None,
        scopes=("http", "ws"),
        not_before=now,
        expires_at=now + 600,
    )
    return said._replace(**members)  # type: ignore[arg-type]


def token(sandbox: str = "sb", **members: object) -> str:
    return capabilities().sign(capability(sandbox, **members))


def scoped(namespace: str = "default", name: str = "sb", *, life: int = 86_400) -> str:
    said = {"ns": namespace, "name": name, "exp": int(time.time()) + life}
    payload = base64.urlsafe_b64encode(json.dumps(said).encode()).rstrip(b"=")
    text = b"agent-sandbox/scoped-token/v1." + payload
    mac = base64.urlsafe_b64encode(hmac.new(SCOPED_SECRET, text, hashlib.sha256).digest())
    return f"v1.{payload.decode()}.{mac.rstrip(b'=').decode()}"


def by_capability() -> ByCapability:
    return ByCapability(
        capabilities(), ScopedTokens(SCOPED_SECRET, now=time.time), clock=time.monotonic
    )


def check(*lines: str, by: Authorizer | None = None, sandbox: str = "sb") -> Grant:
    """Check a request with these field lines."""
    raw = request(sandbox=sandbox, more="".join(f"{line}\r\n" for line in lines))
    head = parse_request_head(raw.removesuffix(b"\r\n"))
    routing = parse_routing(head.values, head.repeated, head.aliases)
    return (by_capability() if by is None else by).check(head, routing)


def refused(*lines: str, by: Authorizer | None = None) -> type[GatewayError]:
    with pytest.raises(GatewayError) as caught:
        check(*lines, by=by)
    kind = next(kind for kind in (Unauthenticated, Forbidden) if isinstance(caught.value, kind))
    assert caught.value.body(b"GET") == kind().body(b"GET"), "a fixed body, whatever the reason"
    return kind


def test_a_capability_lets_its_own_sandbox_be_reached_and_names_its_generation() -> None:
    assert check(f"X-Sandbox-Token: {token()}") == Grant(secret=None, uid="u-1")
    assert check(f"X-Sandbox-Token: {token(uid=None)}") == Grant(secret=None, uid=None)


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER", "Bearer  ", "Bearer \t"])
def test_as_a_bearer_token_it_ends_at_the_gateway(scheme: str) -> None:
    value = f"{scheme} {token()}"
    assert check(f"Authorization: {value}") == Grant(secret=value.encode(), uid="u-1")


def test_x_sandbox_token_decides_and_authorization_is_the_application_s() -> None:
    good, other = token(), token("other")
    for theirs in (f"Bearer {other}", f"Bearer {scoped()[:-1]}", "Basic eDp5", "Bearer x"):
        grant = check(f"Authorization: {theirs}", f"X-Sandbox-Token: {good}")
        assert grant == Grant(secret=None, uid="u-1")
    for bad in ("", "x", good[:-1], f"Bearer {good}", scoped()):
        assert refused(f"Authorization: Bearer {good}", f"X-Sandbox-Token: {bad}") is (
            Unauthenticated
        )
    assert refused(f"Authorization: Bearer {good}", f"X-Sandbox-Token: {other}") is Forbidden


@pytest.mark.parametrize("theirs", ["Bearer hunter2", "bearer  hunter2", f"Bearer {scoped()}"])
def test_another_credential_of_the_gateway_beside_the_token_ends_here_too(theirs: str) -> None:
    by = ByCapability(
        capabilities(),
        ScopedTokens(SCOPED_SECRET, now=time.time),
        clock=time.monotonic,
        router_token="hunter2",
    )
    grant = check(f"X-Sandbox-Token: {token()}", f"Authorization: {theirs}", by=by)
    assert grant == Grant(secret=theirs.encode(), uid="u-1")
    assert check(f"X-Sandbox-Token: {token()}", "Authorization: Bearer app", by=by).secret is None
    assert refused("Authorization: Bearer hunter2", by=by) is Unauthenticated


@pytest.mark.parametrize(
    "lines",
    [
        [],
        ["Authorization: "],
        ["Authorization: Bearer"],
        ["Authorization: Bearer "],
        ["Authorization: Basic eDp5"],
        ["Authorization: {good}"],
        ["Authorization: Basic {good}"],
        ["Authorization: Bearer,{good}"],
        ["Authorization: Bearer {good} {good}"],
        ["Authorization: Bearer {good},"],
        ["Authorization: Bearer {good}", "Authorization: Bearer {good}"],
        ["Authorization: Bearer {good}", "Authorization: Basic eDp5"],
        ["Proxy-Authorization: Bearer {good}"],
        ["Cookie: token={good}"],
        ["X-Sandbox-Token: "],
        ["X-Sandbox-Token: Bearer {good}"],
        ["X-Sandbox-Token: {good}, {good}"],
        ["X-Sandbox-Token: {good}\xe9"],
        ["Authorization: Bearer {good}\xe9"],
        ["Authorization: Bearer v1.x.y"],
    ],
)
def test_without_one_valid_credential_in_its_place_it_is_401(lines: list[str]) -> None:
    good = token()
    assert refused(*(line.format(good=good) for line in lines)) is Unauthenticated


@pytest.mark.parametrize(
    ("members", "lines"),
    [
        ({"sandbox": Label("sb2")}, []),
        ({"sandbox": Label("s")}, []),
        ({"namespace": Label("team")}, []),
        ({}, ["X-Sandbox-Namespace: team"]),
        ({"ports": ()}, []),
        ({"ports": (Port(8887), Port(8889))}, []),
        ({"ports": (Port(8888),)}, ["X-Sandbox-Port: 3000"]),
        ({"scopes": ()}, []),
        ({"scopes": ("ws",)}, []),
        ({"scopes": ("ws",)}, ["Upgrade: h2c", "Connection: Upgrade"]),
        ({"scopes": ("http",)}, HANDSHAKE.split("\r\n")[:-1]),
    ],
)
def test_a_valid_token_for_something_else_is_403(
    members: dict[str, object], lines: list[str]
) -> None:
    said = capability()._replace(**members)  # type: ignore[arg-type]
    assert refused(f"X-Sandbox-Token: {capabilities().sign(said)}", *lines) is Forbidden


@pytest.mark.parametrize(
    ("members", "lines"),
    [
        ({"ports": (Port(3000), Port(8888))}, ["X-Sandbox-Port: 3000"]),
        ({"scopes": ("http",)}, []),
        ({"scopes": ("http",)}, ["Upgrade: h2c", "Connection: Upgrade"]),
        ({"scopes": ("ws",)}, HANDSHAKE.split("\r\n")[:-1]),
    ],
)
def test_what_a_token_allows_passes(members: dict[str, object], lines: list[str]) -> None:
    said = capability()._replace(**members)  # type: ignore[arg-type]
    assert check(f"X-Sandbox-Token: {capabilities().sign(said)}", *lines).uid == "u-1"


def test_what_only_looks_like_a_handshake_is_refused_as_that() -> None:
    with pytest.raises(BadRequest):
        check(f"X-Sandbox-Token: {token()}", "Upgrade: websocket")


def test_a_scoped_token_opens_every_port_of_its_sandbox_and_ends_at_the_gateway() -> None:
    value = f"Bearer {scoped()}"
    for port in (80, 8888):
        grant = check(f"Authorization: {value}", f"X-Sandbox-Port: {port}")
        assert grant == Grant(secret=value.encode(), uid=None)


@pytest.mark.parametrize(
    ("text", "lines", "kind"),
    [
        (scoped("team"), [], Forbidden),
        (scoped(name="other"), [], Forbidden),
        (scoped(), ["X-Sandbox-Namespace: team"], Forbidden),
        (scoped(), ["X-Sandbox-UID: u-1"], Forbidden),
        (scoped(), ["X-Sandbox-Pod-IP: 10.0.0.1"], Forbidden),
        (scoped(life=0), [], Unauthenticated),
        (scoped()[:-1], [], Unauthenticated),
        (scoped() + "=", [], Unauthenticated),
    ],
)
def test_a_scoped_token_for_something_else_is_403_and_a_bad_one_401(
    text: str, lines: list[str], kind: type[GatewayError]
) -> None:
    assert refused(f"Authorization: Bearer {text}", *lines) is kind


def test_where_no_secret_of_scoped_tokens_is_configured_they_open_nothing() -> None:
    alone = ByCapability(capabilities(), None, clock=time.monotonic)
    assert refused(f"Authorization: Bearer {scoped()}", by=alone) is Unauthenticated


def test_a_shared_token_is_compared_whole_and_a_capability_does_not_stand_in_for_it() -> None:
    by = SharedToken("hunter2")
    assert check("Authorization: Bearer hunter2", by=by).secret == b"Bearer hunter2"
    assert refused(f"X-Sandbox-Token: {token()}", by=by) is Unauthenticated
    for wrong in ("hunter", "hunter22", "Hunter2", "hunter2 x", ""):
        assert refused(f"Authorization: Bearer {wrong}", by=by) is Unauthenticated


def test_where_nobody_is_asked_everything_passes() -> None:
    assert check(by=Anyone()) == Grant()


def test_a_refused_credential_is_counted_by_its_reason_and_logged_once_a_second(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = [0.0]
    by = ByCapability(capabilities(), None, clock=lambda: clock[0])
    with caplog.at_level(logging.INFO, logger="sandgate.authorize"):
        for _ in range(5):
            refused(f"X-Sandbox-Token: {token()[:-4]}AAAA", by=by)
        clock[0] += 1
        refused(by=by)
        refused(f"X-Sandbox-Token: {token(not_before=2**33)}", by=by)
        refused("X-Sandbox-Token: hunter2", by=by)
    assert by.refusals == {"bad_mac": 5, "missing": 1, "not_yet_valid": 1, "malformed": 1}
    assert [vars(record)["reason"] for record in caplog.records] == ["bad_mac", "missing"]
    assert "sg1." not in str([vars(record) for record in caplog.records])


def test_no_credential_is_in_a_repr() -> None:
    good = token()
    by = by_capability()
    check(f"X-Sandbox-Token: {good}", by=by)
    check(f"Authorization: Bearer {scoped()}", by=by)
    grants = [Grant(), Grant(secret=b"Bearer hunter2", uid="u-1")]
    inside = [getattr(by, name) for name in dir(by) if not name.startswith("__")]
    shown = repr((by, SharedToken("hunter2"), inside, grants))
    for secret in ("sssss", "hunter2", "sg1.", "v1.", "0123456789abcdef"):
        assert secret not in shown


# Over the wire.


@pytest.fixture
def keys(tmp_path: Path) -> str:
    path = tmp_path / "keys.yaml"
    secret = base64.b64encode(SECRET).decode()
    path.write_text(f"keys: [{{kid: k1, secret: {secret!r}, use: sign}}]")
    return str(path)


async def ask(port: int, raw: bytes) -> Answer:
    async with connect(port) as client:
        await client.send(raw)
        return await client.read_answer()


def with_token(sandbox: str, text: str, *, more: str = "") -> bytes:
    return request(sandbox=sandbox, more=f"X-Sandbox-Token: {text}\r\n{more}")


async def test_of_100_tokens_at_100_sandboxes_each_opens_its_own_and_the_rest_do_nothing(
    keys: str,
) -> None:
    names = [f"sb-{number}" for number in range(100)]
    tokens = {name: token(name, uid=f"uid-{name}") for name in names}
    passed: list[tuple[str, str]] = []
    refusals: Counter[tuple[int, str | None, bytes]] = Counter()
    async with (
        ScriptedUpstream(answer_ok).running() as upstream,
        running_gateway(SANDGATE_KEYS=keys) as gateway,
    ):
        for name in names:
            gateway.registry.add(name, upstream.port, uid=f"uid-{name}")

        async def try_all(holder: str) -> None:
            for name in names:
                answer = await ask(gateway.port, with_token(name, tokens[holder]))
                if answer.status == 200:
                    passed.append((holder, name))
                else:
                    refusals[answer.status, answer.code, answer.body] += 1

        for start in range(0, 100, 20):
            await asyncio.gather(*map(try_all, names[start : start + 20]))
        assert sorted(passed) == sorted((name, name) for name in names)
        assert refusals == {(403, "forbidden", Forbidden().body(b"GET")): 9900}
        # Nothing was looked up or dialled for the 9,900, and no sandbox saw another's request.
        assert Counter(target.sandbox for target in gateway.registry.look_ups) == Counter(names)
        assert len(upstream.sides) == len(upstream.heads) == 100
        hosts = sorted(head.split(b"Host: ")[1].split(b".")[0].decode() for head in upstream.heads)
        assert hosts == sorted(names)


def bits(text: str, places: Iterable[int]) -> Iterable[bytes]:
    for place in places:
        for bit in range(8):
            flipped = bytearray(text.encode())
            flipped[place] ^= 1 << bit
            yield bytes(flipped)


async def test_no_token_with_one_wrong_bit_reaches_anything(keys: str) -> None:
    good = token()
    async with relaying(answer_ok, SANDGATE_KEYS=keys) as (upstream, gateway, _):
        for flipped in bits(good, range(0, len(good), 5)):
            raw = b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Sandbox-ID: sb\r\nX-Sandbox-Token: "
            answer = await ask(gateway.port, raw + flipped + b"\r\n\r\n")
            # A bit may make a byte of it one that no field may hold.
            assert (answer.status, answer.code) in {
                (401, "unauthenticated"),
                (400, "bad_request"),
            }
        assert gateway.registry.look_ups == []
        assert upstream.sides == []


@pytest.mark.parametrize("sandbox", ["sb", "nobody"])
@pytest.mark.parametrize(
    ("text", "status"), [(None, 401), ("sg1.k1.x.y", 401), (token("third"), 403)]
)
async def test_a_sandbox_that_exists_and_one_that_does_not_are_refused_alike(
    keys: str, sandbox: str, text: str | None, status: int
) -> None:
    raw = request(sandbox=sandbox) if text is None else with_token(sandbox, text)
    async with relaying(answer_ok, SANDGATE_KEYS=keys) as (upstream, gateway, _):
        answer = await ask(gateway.port, raw)
        assert answer.status == status
        expected = Unauthenticated() if status == 401 else Forbidden()
        assert answer.body == expected.body(b"GET")
        assert gateway.registry.look_ups == []
        assert (upstream.sides, gateway.dials) == ([], 0)


async def test_a_token_of_a_released_sandbox_is_not_found_and_of_another_generation_421(
    keys: str,
) -> None:
    async with relaying(answer_ok, SANDGATE_KEYS=keys) as (upstream, gateway, _):
        raw = with_token("sb", token(uid="u-1"))
        gateway.registry.add("sb", upstream.port, uid="u-2")
        answer = await ask(gateway.port, raw)
        assert (answer.status, answer.code) == (421, "sandbox_replaced")
        gateway.registry.remove("sb")
        answer = await ask(gateway.port, raw)
        assert (answer.status, answer.code) == (404, "sandbox_not_found")
        assert upstream.sides == []
        gateway.registry.add("sb", upstream.port, uid="u-1")
        assert (await ask(gateway.port, raw)).status == 200


async def test_each_pipelined_request_is_judged_by_its_own_token(keys: str) -> None:
    async with relaying(answer_ok, SANDGATE_KEYS=keys) as (upstream, gateway, client):
        gateway.registry.add("sb-2", upstream.port, uid="u-1")
        gateway.registry.add("sb", upstream.port, uid="u-1")
        await client.send(
            with_token("sb", token())
            + with_token("sb-2", token("sb-2"))
            + with_token("sb-2", token())
        )
        assert [(await client.read_answer()).status for _ in range(3)] == [200, 200, 403]
        assert await client.read_rest() == b""
        assert len(upstream.heads) == 2


CREDENTIALS = [
    ("X-Sandbox-Token: {token}", "Authorization: Bearer of-the-app"),
    ("Authorization: Bearer {token}", None),
    ("authorization: bearer {token}", None),
    ("Authorization: Bearer {scoped}", None),
]


@pytest.mark.parametrize(("credential", "passing"), CREDENTIALS)
async def test_a_credential_is_in_no_request_answer_log_or_metric_and_the_app_s_own_passes(
    keys: str,
    tmp_path: Path,
    credential: str,
    passing: str | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "scoped").write_bytes(SCOPED_SECRET)
    settings = {"SANDGATE_KEYS": keys, "SANDGATE_SCOPED_TOKEN_FILE": str(tmp_path / "scoped")}
    good, other = token(), scoped()
    line = credential.format(token=good, scoped=other)
    more = "".join(f"{text}\r\n" for text in (line, passing, "Cookie: session=1") if text)
    with caplog.at_level(logging.DEBUG):
        async with relaying(answer_ok, **settings) as (upstream, gateway, client):
            gateway.registry.add("sb", upstream.port, uid="u-1")
            await client.send(request(more=more))
            answers = [await client.read_answer()]
            assert answers[0].status == 200
            bad = more.replace(good[-8:], "AAAAAAAA").replace(other[-8:], "AAAAAAAA")
            answers.append(await ask(gateway.port, request(more=bad)))
            answers.append(await ask(gateway.port, request(sandbox="other", more=more)))
            assert [answer.status for answer in answers] == [200, 401, 403]
            scraped = generate_latest(gateway.gateway.metrics.registry)
            shown = repr((gateway.gateway.authorizer, list(gateway.gateway.connections)))
    sinks = [
        upstream.received,
        b"".join(answer.raw_head + answer.body for answer in answers),
        scraped,
        shown.encode(),
        str([vars(record) for record in caplog.records]).encode(),
    ]
    for sink in sinks:
        for secret in (good, good[-43:], other, other[-43:]):
            assert secret.encode() not in sink
    assert b'sandgate_tokens_refused_total{reason="bad_mac"} 1.0' in scraped
    assert b"Cookie: session=1\r\n" in upstream.received
    assert (b"of-the-app" in upstream.received) is (passing is not None)
    assert upstream.received.lower().count(b"authorization") == (0 if passing is None else 1)


async def test_a_websocket_needs_the_scope_for_it(keys: str) -> None:
    async def switch(side: UpstreamSide) -> None:
        await side.read_head()
        side.send(SWITCHED)
        await side.wait_ended()

    async with relaying(switch, SANDGATE_KEYS=keys) as (upstream, gateway, _):
        gateway.registry.add("sb", upstream.port, uid="u-1")
        refused = with_token("sb", token(scopes=("http",)), more=HANDSHAKE)
        assert (await ask(gateway.port, refused)).status == 403
        assert upstream.sides == []
        raw = with_token("sb", token(scopes=("ws",)), more=HANDSHAKE)
        assert (await ask(gateway.port, raw)).status == 101


async def test_with_a_token_no_host_is_foreign_and_without_one_asked_it_is(keys: str) -> None:
    raw = with_token("sb", token(), more="Origin: https://app.example\r\n")
    raw = raw.replace(b"Host: localhost", b"Host: gw.example")
    answering_ok = answering(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    async with relaying(answering_ok, SANDGATE_KEYS=keys) as (upstream, gateway, _):
        gateway.registry.add("sb", upstream.port, uid="u-1")
        assert (await ask(gateway.port, raw)).status == 200
    async with relaying(answering_ok, SANDGATE_AUTH="none") as (upstream, gateway, _):
        answer = await ask(gateway.port, raw)
        assert (answer.status, answer.code) == (403, "not_allowed_here")
