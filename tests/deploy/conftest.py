"""What is rendered and what is built, for all tests of deploy/."""

import os
import shutil

import pytest
from deploy.manifests import VARIANTS, Manifest, container, environment, kustomize, of_kind
from deploy.room import Room, build_images
from deploy.stand_ins import STAND_INS

from sandgate_router.config import Config

GATEWAYS = [folders for example, folders in VARIANTS.items() if example != "pools"]
SECRET_VALUES = {"ROUTER_AUTH_TOKEN": "a-token-out-of-a-secret"}

FETCHES = os.environ.get("SANDGATE_DEPLOY") == "1"
"""Whether the images' steps fetch packages, as they would under an engine."""


@pytest.fixture(params=GATEWAYS, ids="+".join)
def manifests(request: pytest.FixtureRequest) -> tuple[Manifest, ...]:
    return kustomize(*request.param)


@pytest.fixture
def deployment(manifests: tuple[Manifest, ...]) -> Manifest:
    return of_kind(manifests, "Deployment")


@pytest.fixture
def pod(deployment: Manifest) -> Manifest:
    spec: Manifest = deployment["spec"]["template"]["spec"]
    return spec


@pytest.fixture
def config(manifests: tuple[Manifest, ...]) -> Config:
    """Return what the gateway makes of exactly the variables of its container."""
    return Config.from_environ(environment(container(manifests), **SECRET_VALUES), command="router")


@pytest.fixture(scope="session")
def rooms(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Room]:
    """Return what the images hold, by their names."""
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    folder = tmp_path_factory.mktemp("images")
    return build_images(folder, stand_ins={} if FETCHES else STAND_INS)


@pytest.fixture
def router(rooms: dict[str, Room]) -> Room:
    return rooms["router"]


@pytest.fixture
def runtime(rooms: dict[str, Room]) -> Room:
    return rooms["runtime"]
