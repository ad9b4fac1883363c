"""What the pages on running it in a cluster say is there: settings, folders, objects, times."""

import re
from dataclasses import fields
from pathlib import Path

import pytest
import yaml
from deploy.manifests import CHART, KUSTOMIZE, ROOT, VARIANTS, kustomize

from sandgate_router.config import FOR_OTHERS, Config

PAGES = [
    ROOT / "docs" / "migrating.md",
    ROOT / "deploy" / "README.md",
    ROOT / "docs" / "operations.md",
]
MIGRATING = PAGES[0].read_text("utf-8")
SETTINGS = {row.metadata["name"] for row in fields(Config)}


@pytest.fixture(params=PAGES, ids=lambda path: path.name)
def page(request: pytest.FixtureRequest) -> str:
    text: str = request.param.read_text("utf-8")
    return text


def test_every_setting_that_a_page_names_is_one(page: str) -> None:
    named = set(re.findall(r"`(SANDGATE_\w+)", page))
    assert named - SETTINGS - FOR_OTHERS - {"SANDGATE_ROUTER_TOKEN"} == set()


def test_every_variable_of_the_upstream_router_that_is_said_to_mean_the_same_is_one() -> None:
    named = set(re.findall(r"`([A-Z]+_[A-Z_]+)`", MIGRATING))
    assert {"PROXY_TIMEOUT_SECONDS", "CLUSTER_DOMAIN", "TRUSTED_PROXY_CIDRS"} <= named
    assert named <= SETTINGS


def test_every_folder_and_file_that_a_page_names_is_there(page: str) -> None:
    for path in re.findall(r"(?<![\w/])(deploy/[\w./-]+)", page):
        assert (ROOT / path.rstrip(".")).exists(), path


@pytest.mark.parametrize("path", [*PAGES, ROOT / "README.md"], ids=lambda path: path.name)
def test_every_link_between_these_pages_leads_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]*)(?:#[^)]*)?\)", path.read_text("utf-8")):
        assert not target or (path.parent / target).exists(), target


def test_the_grace_period_of_the_swap_is_longer_than_a_drain() -> None:
    (seconds,) = re.findall(r'"terminationGracePeriodSeconds": (\d+)', MIGRATING)
    config = Config.from_environ({"ROUTER_AUTH_TOKEN": "x"}, command="router")
    assert config.drain_delay + config.drain_timeout < int(seconds)
    assert f"up to {config.drain_delay + config.drain_timeout:.0f} seconds" in MIGRATING


def test_objects_that_the_swap_names_are_those_of_the_manifests() -> None:
    names = {
        f"{manifest['kind'].lower()}/{manifest['metadata']['name']}"
        for manifest in kustomize("overlays/dns-only")
    }
    upstream = {"deployment/sandbox-router-deployment"}
    assert set(re.findall(r"deployment/[\w-]+", MIGRATING)) <= names | upstream
    assert "service/sandbox-router-svc" in names


def test_the_image_of_the_swap_is_that_of_the_manifests() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))
    pages = [path.read_text("utf-8") for path in PAGES]
    named = {tag for text in pages for tag in re.findall(r"sandgate-\w+:([\w.]+)", text)}
    assert named == {chart["appVersion"]}


def test_the_map_of_the_folder_has_all_of_it() -> None:
    text = (ROOT / "deploy" / "README.md").read_text("utf-8")
    for folder in (path.name for path in (KUSTOMIZE / "overlays").iterdir()):
        assert f"`{folder}`" in text or f"overlays/{folder}`" in text
    for example in VARIANTS:
        assert not example or (CHART / "examples" / f"{example}.yaml").exists()
