"""The tokens that open sandboxes are spelled and signed as docs/wire.md says."""

import base64
from datetime import UTC, datetime
from types import SimpleNamespace

from contract.goldens import NAME, UID, read_json

from sandgate_router.capability import Capabilities, KeySet, derive_key
from sandgate_router.capability_text import Capability, build_payload, parse_payload
from sandgate_router.names import Label, Port
from sandgate_router.scoped_token import ScopedToken, ScopedTokens

GOLDEN = read_json("capability.json")
SCOPED = read_json("scoped-token.json")
BEGIN = datetime(2026, 11, 30, 12, 0, tzinfo=UTC).timestamp()

CAPABILITY = Capability(
    audience="sandgate",
    namespace=Label("default"),
    claim=Label("tour"),
    sandbox=Label(NAME.partition("/")[2]),
    uid=UID,
    ports=(Port(3000), Port(8888)),
    scopes=("http", "ws"),
    not_before=int(BEGIN),
    expires_at=int(BEGIN) + 600,
)


def capabilities() -> Capabilities:
    keys = KeySet({GOLDEN["kid"]: base64.b64decode(GOLDEN["secret"])}, signing=GOLDEN["kid"])
    return Capabilities(keys, audience="sandgate", now=lambda: BEGIN)


def test_the_gateway_spells_the_golden_payload_and_reads_it() -> None:
    assert build_payload(CAPABILITY).decode() == GOLDEN["payload"]
    assert parse_payload(GOLDEN["payload"].encode()) == CAPABILITY


def test_the_gateway_derives_the_golden_key_of_a_namespace() -> None:
    secret = base64.b64decode(GOLDEN["secret"])
    key = derive_key(secret, b"sandgate/capability/v1\x00default")
    assert key.hex() == GOLDEN["key_of_the_namespace"]


def test_the_gateway_mints_the_golden_token_for_its_claim_and_takes_it() -> None:
    claim = SimpleNamespace(
        namespace=CAPABILITY.namespace,
        name=CAPABILITY.claim,
        sandbox=CAPABILITY.sandbox,
        uid=UID,
        ports=CAPABILITY.ports,
        expires_at=datetime.fromtimestamp(BEGIN + 600, UTC),
    )
    minted = capabilities().mint(claim)
    assert minted.token == GOLDEN["token"]
    assert minted.expires_at == claim.expires_at
    assert capabilities().verify(GOLDEN["token"].encode()) == CAPABILITY


def test_the_gateway_takes_the_golden_scoped_token() -> None:
    tokens = ScopedTokens(SCOPED["secret"].encode(), now=lambda: BEGIN)
    said = tokens.verify(SCOPED["token"].encode())
    assert said == ScopedToken(Label("default"), Label("box-a"), 2_000_000_000)
