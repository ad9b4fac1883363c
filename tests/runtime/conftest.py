"""Runtimes for the tests: one per module for tests that only ask, one of its own otherwise."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.runtime_server import RuntimeServer, start_runtime


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RuntimeServer]:
    """An un-isolated runtime that the tests of a module share."""
    with start_runtime(tmp_path_factory.mktemp("base")) as server:
        yield server


@pytest.fixture
def fresh_runtime(tmp_path: Path) -> Iterator[RuntimeServer]:
    """A runtime that nobody else has used."""
    base = tmp_path / "base"
    base.mkdir()
    with start_runtime(base) as server:
        yield server
