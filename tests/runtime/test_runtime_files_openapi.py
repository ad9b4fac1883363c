"""The file routes are the ones that openapi.yaml describes: schemathesis tries them.

It compares each status, field and body of the answers with what is described. `/v1/watch` is
left out: its answer has no end to wait for.
"""

import subprocess
import sys
from pathlib import Path

import yaml
from support.runtime_server import RuntimeServer

from sandgate_runtime.errors import Refusal
from sandgate_runtime.files import refusals

SCHEMATHESIS = Path(sys.executable).with_name("schemathesis")
SETTINGS = Path(__file__).with_name("schemathesis_files.toml")
DOCUMENT = Path(__file__).parents[2] / "runtime" / "openapi.yaml"


def test_schemathesis_finds_no_failure(fresh_runtime: RuntimeServer, tmp_path: Path) -> None:
    (fresh_runtime.base / "0").write_text("content")
    (fresh_runtime.base / "d" / "sub").mkdir(parents=True)
    command: list[str | Path] = [SCHEMATHESIS, "--config-file", SETTINGS, "run", DOCUMENT]
    command += [
        "--no-color",
        "--url",
        fresh_runtime.url,
        "--include-path-regex",
        "^/v1/(files|metadata)",
    ]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout + process.stderr
    assert "No issues found" in process.stdout
    assert fresh_runtime.client.get("/v1/health").status_code == 200


def test_every_refusal_of_the_file_routes_fits_the_description() -> None:
    error = yaml.safe_load(DOCUMENT.read_text())["components"]["schemas"]["Error"]["properties"]
    found = [
        value
        for value in vars(refusals).values()
        if isinstance(value, type) and issubclass(value, Refusal)
    ]
    assert len(found) > 10
    for refusal in found:
        assert refusal.code in error["code"]["enum"]
        assert refusal.reason.replace("_", "").isalpha()
