"""What the Dockerfile builds starts, as nobody in particular, with nothing to write to.

Its steps run as they stand in a room made by bubblewrap. Those that fetch packages have a
stand-in here, the environment that these tests run in; `make test-deploy` fetches them.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from deploy.dockerfile import Stage, is_sent, read_ignored, read_stages
from deploy.manifests import ROOT
from deploy.room import TARGETS, Room
from deploy.stand_ins import STAND_INS

QUICK = {"SANDGATE_DRAIN_DELAY": "0"}
DEVELOPMENT = {"pytest", "mypy", "ruff", "hypothesis", "hatchling", "pip", "setuptools"}


@pytest.fixture
def volumes(tmp_path: Path) -> dict[str, Path]:
    """Return the folders that a sandbox's template mounts, for the image's user to write to."""
    stage = read_stages()["runtime"]
    user, _, group = stage.user.partition(":")
    made = {}
    for name in ("app", "tmp", "var/lib/sandgate", "home/user"):
        folder = tmp_path / name.replace("/", "-")
        folder.mkdir()
        if os.getuid() == 0:
            os.chown(folder, int(user), int(group))
        made[f"/{name}"] = folder
    return made


def test_every_step_that_has_a_stand_in_is_one_of_the_dockerfile() -> None:
    lines = {line for stage in read_stages().values() for line in stage.run}
    assert set(STAND_INS) <= lines


def test_an_engine_is_sent_what_the_steps_copy_and_little_else() -> None:
    ignored = read_ignored()
    copied = [source for stage in read_stages().values() for source in stage.copied]
    assert copied
    for source in copied:
        assert (ROOT / source).exists()
        assert is_sent(source, ignored), source
    for path in (".git/config", ".venv/bin/python", "tests/deploy/room.py", "keys.yaml"):
        assert not is_sent(path, ignored), path
    assert not is_sent("router/sandgate_router/__pycache__/a.pyc", ignored)
    assert not is_sent("deploy/kustomize/base/rbac.yaml", ignored)


def test_the_gateway_starts_as_nobody_and_is_well(router: Room) -> None:
    stage = read_stages()["router"]
    seen = router.start(
        stage,
        environ={"ROUTER_AUTH_TOKEN": "token", **QUICK},
        requests=[
            *({"port": 8080, "path": path} for path in ("/healthz", "/livez", "/readyz")),
            {"port": 9090, "path": "/metrics"},
        ],
        paths=["/", "/opt/sandgate", "/tmp", "/usr", "/etc", "."],
    )
    assert seen["first"] == "listening on http://0.0.0.0:8080\n", seen["errors"]
    assert [answer["status"] for answer in seen["answers"]] == [200, 200, 200, 200]
    assert (seen["healthy"], seen["healthy_after"]) == (0, 1)
    assert seen["exit"] == 0, seen["errors"]
    assert seen["writable"] == []
    assert stage.ports == [8080, 9090]
    _is_the_image_s_user(seen, stage)


def _is_the_image_s_user(seen: dict[str, Any], stage: Stage) -> None:
    assert seen["uid"] == int(stage.user.partition(":")[0]) > 0


@pytest.mark.parametrize("address", ["127.0.0.1:7070", "[::1]:7070", "0.0.0.0:7070"])
def test_the_health_check_asks_where_the_gateway_was_told_to_listen(
    router: Room, address: str
) -> None:
    environ = {"ROUTER_AUTH_TOKEN": "token", "SANDGATE_LISTEN": address, **QUICK}
    seen = router.start(read_stages()["router"], environ=environ)
    assert seen["first"] == f"listening on http://{address}\n", seen["errors"]
    assert (seen["healthy"], seen["healthy_after"], seen["exit"]) == (0, 1, 0)


def test_the_runtime_starts_as_its_user_and_runs_commands(
    runtime: Room, volumes: dict[str, Path]
) -> None:
    stage = read_stages()["runtime"]
    seen = runtime.start(
        stage,
        environ={"SANDGATE_SANDBOX_NAME": "sandboxes/python-1"},
        writable=volumes,
        requests=[
            {"port": 8888, "path": "/v1/health"},
            {
                "port": 8888,
                "method": "POST",
                "path": "/execute",
                "body": json.dumps({"command": "sh -c 'echo $PWD; id -u; touch /tmp/x'"}),
                "fields": {"Content-Type": "application/json"},
            },
        ],
        paths=["/", "/opt/sandgate", "/app", "/home/user", "/tmp"],
    )
    assert seen["first"] == "listening on http://0.0.0.0:8888\n", seen["errors"]
    assert seen["answers"][0]["status"] == 200
    said = json.loads(seen["answers"][1]["content"])
    assert said == {"stdout": f"/app\n{seen['uid']}\n", "stderr": "", "exit_code": 0}
    assert (seen["healthy"], seen["healthy_after"]) == (0, 1)
    assert seen["exit"] == 0, seen["errors"]
    assert seen["writable"] == ["/app", "/home/user", "/tmp"]
    assert stage.ports == [8888]
    _is_the_image_s_user(seen, stage)


@pytest.mark.parametrize("target", TARGETS)
def test_an_image_holds_what_it_runs_and_no_tools(rooms: dict[str, Room], target: str) -> None:
    room = rooms[target]
    (packages,) = (room.opt / "sandgate" / "lib").glob("python3*/site-packages")
    there = {path.name.partition("-")[0].lower() for path in packages.glob("*.dist-info")}
    assert "sandgate" in there
    assert not there & DEVELOPMENT
    assert ("dnspython" in there) is (target == "router")
    assert not [
        path for path in packages.iterdir() if "editable" in path.name or path.suffix == ".pth"
    ]
    assert not (room.opt / "sandgate" / "bin" / "pip").exists()
    assert (packages / "sandgate_router" / "openapi.yaml").exists()


def test_an_image_has_its_own_user_and_the_settings_of_the_allocator() -> None:
    stages = read_stages()
    # As runAsUser and fsGroup of the manifests have it.
    assert stages["router"].user == "65532:65532"
    assert stages["runtime"].user == "1000:1000"
    assert (
        stages["router"].environment.items()
        >= {
            "MALLOC_TRIM_THRESHOLD_": "268435456",
            "MALLOC_MMAP_THRESHOLD_": "33554432",
            "MALLOC_TOP_PAD_": "16777216",
        }.items()
    )
    assert stages["runtime"].environment["SANDGATE_ISOLATED"] == "1"
