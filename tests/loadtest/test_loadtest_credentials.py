"""The measurement mints its own capabilities, and they must be those that gateways take."""

import base64
import json
from pathlib import Path

from loadtest.credentials import build_payload, sign

GOLDEN = Path(__file__).parents[1] / "contract" / "golden" / "capability.json"


def test_a_capability_of_the_load_is_the_golden_one() -> None:
    golden = json.loads(GOLDEN.read_text())
    secret = base64.b64decode(golden["secret"])

    assert sign(json.loads(golden["payload"]), kid=golden["kid"], secret=secret) == golden["token"]


def test_the_load_names_the_members_of_a_capability_in_the_order_of_the_wire() -> None:
    golden = json.loads(GOLDEN.read_text())

    assert list(build_payload(7, now=1_000_000_000)) == list(json.loads(golden["payload"]))


def test_load_and_warm_up_come_with_the_same_capability_which_lives_on_for_both() -> None:
    warm_up, load = build_payload(7, now=1_000_000_000), build_payload(7, now=1_000_000_000 + 60)

    assert warm_up == load
    begins, ends = warm_up["nbf"], warm_up["exp"]
    assert isinstance(begins, int)
    assert isinstance(ends, int)
    assert begins <= 1_000_000_000 <= ends - 1800
