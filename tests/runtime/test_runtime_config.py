"""Settings are the same in the code and in the documentation."""

import re
from pathlib import Path

import pytest

from sandgate_runtime import config
from sandgate_runtime.config import BadSettings, Config

DOCS = Path(__file__).parents[2] / "docs" / "operations.md"
NAME = r"SAND(?:GATE|BOX)_[A-Z_]+"


def documented() -> dict[str, str]:
    """Return each variable of the table with its default."""
    table = DOCS.read_text().partition("## The variables of the runtime")[2].partition("{")[0]
    rows = re.findall(r"^\| (`SAND[^|]*) \|(?: `([^|`]*)`)? \|", table, re.MULTILINE)
    return {name: default for names, default in rows for name in re.findall(NAME, names)}


def test_the_documentation_names_exactly_the_variables_that_are_read() -> None:
    source = Path(config.__file__).read_text()
    assert set(documented()) == set(re.findall(rf'"({NAME})"', source))


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("SANDBOX_EXEC_TIMEOUT_SECONDS", config.DEFAULT_COMMAND_TIMEOUT),
        ("SANDGATE_MAX_COMMANDS", config.DEFAULT_MAX_COMMANDS),
        ("SANDGATE_MAX_REQUESTS", config.DEFAULT_MAX_REQUESTS),
        ("SANDGATE_MAX_JSON_BYTES", config.DEFAULT_MAX_JSON_BYTES),
        ("SANDGATE_OUTPUT_BUFFER_BYTES", config.DEFAULT_OUTPUT_BUFFER_BYTES),
        ("SANDGATE_KEEP_FINISHED", config.DEFAULT_KEEP_FINISHED),
        ("SANDGATE_KEEP_FINISHED_SECONDS", config.DEFAULT_KEEP_FINISHED_SECONDS),
    ],
)
def test_the_documented_defaults_are_those_of_the_code(variable: str, value: float) -> None:
    assert float(documented()[variable]) == value


def test_all_faults_are_told_at_once(tmp_path: Path) -> None:
    environ = {
        "SANDBOX_BASE_DIR": str(tmp_path),
        "SANDGATE_MAX_COMMANDS": "-1",
        "SANDGATE_KEEP_FINISHED_SECONDS": "nan",
        "SANDGATE_STATE_DIR": "state",
    }
    with pytest.raises(BadSettings) as refused:
        Config.from_environ(environ)
    assert len(refused.value.faults) == 3
