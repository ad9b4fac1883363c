"""docs/wire.md says what the golden messages and the code say."""

import ast
import json
import re
from pathlib import Path

import pytest
from contract.goldens import DOCUMENT, FOLDER, read

import sandgate_router
from sandgate._wire.codes import class_for_code
from sandgate.errors import SandgateError
from sandgate_router import errors
from sandgate_router.errors import GatewayError

TEXT = DOCUMENT.read_text(encoding="utf-8")
_QUOTE = re.compile(
    r"\]\(\.\./tests/contract/golden/([\w.-]+)\)[^\n]*\n\n```\w+\n(.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_CODE_ROW = re.compile(r"^\| ([0-9]{3}) \| `(\w+)` \| (.*) \| ([a-z, ]+) \|$", re.MULTILINE)

QUOTES = dict(_QUOTE.findall(TEXT))
ROWS = {
    (int(status), code): (detail, reached)
    for status, code, detail, reached in _CODE_ROW.findall(TEXT)
}
"""One code may have two statuses."""


def classes() -> dict[str, type[GatewayError]]:
    """Return every error class of the gateway by its name."""
    found = vars(errors).values()
    kinds = [kind for kind in found if isinstance(kind, type) and issubclass(kind, GatewayError)]
    return {kind.__name__: kind for kind in kinds if kind is not GatewayError}


def used_names() -> set[str]:
    """Return the names that the gateway's code uses, but for imports and the errors themselves."""
    folder = Path(sandgate_router.__file__).parent
    return {
        node.id
        for path in folder.rglob("*.py")
        if path.name != "errors.py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Name)
    }


def test_every_golden_message_is_quoted() -> None:
    assert set(QUOTES) == {path.name for path in FOLDER.iterdir()}


@pytest.mark.parametrize("name", sorted(QUOTES))
def test_a_quoted_message_is_the_golden_one(name: str) -> None:
    golden = read(name).decode()
    if name.endswith(".json"):
        assert json.loads(QUOTES[name]) == json.loads(golden)
    else:
        assert QUOTES[name].strip() == golden.replace("\r\n", "\n").strip()


def test_the_table_has_exactly_the_codes_that_the_gateway_can_send() -> None:
    used = used_names()
    assert set(ROWS) == {
        (kind.status, kind.code) for name, kind in classes().items() if name in used
    }


@pytest.mark.parametrize(("status", "code"), sorted(ROWS))
def test_a_row_has_the_usual_text_and_whether_the_sandbox_was_reached(
    status: int, code: str
) -> None:
    detail, reached = ROWS[status, code]
    (kind,) = (kind for kind in classes().values() if (kind.status, kind.code) == (status, code))
    assert detail == kind.detail
    assert kind.reached in reached.split(", ")


@pytest.mark.parametrize("code", sorted({code for _, code in ROWS}))
def test_the_handle_has_a_type_for_every_code(code: str) -> None:
    assert class_for_code(code) is not SandgateError
