"""Both ways of installing it say the same, and what they say is known to the cluster."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import jsonschema
import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml
from deploy.manifests import (
    CHART,
    DEPLOY,
    KUSTOMIZE,
    NAMESPACE,
    ROOT,
    SAMPLES,
    VARIANTS,
    BadValues,
    Manifest,
    helm,
    kustomize,
    lint_chart,
    of_kind,
    render_chart,
)

KUBERNETES = ["1.30", "1.37"]
"""The oldest version that the chart takes, and the newest whose schemas there are."""

CUSTOM = yaml.safe_load(Path(__file__).with_name("custom-resources.yaml").read_text("utf-8"))
FOLDERS = [*VARIANTS.values(), ["samples/callers"], ["gateway"]]


def everything() -> list[Manifest]:
    """Return every manifest of every variant, and what is the same in several once."""
    found = {json.dumps(m, sort_keys=True): m for folders in FOLDERS for m in kustomize(*folders)}
    return list(found.values())


def by_name(manifests: Sequence[Manifest]) -> dict[str, Manifest]:
    found = {}
    for manifest in manifests:
        key = f"{manifest['kind']}/{manifest['metadata']['name']}"
        assert key not in found
        found[key] = _as_a_mapping(manifest)
    return found


def _as_a_mapping(manifest: Manifest) -> Manifest:
    """Return it with variables by their names: their order means nothing here."""
    copy: Manifest = json.loads(json.dumps(manifest))
    if copy["kind"] == "Deployment":
        for container in copy["spec"]["template"]["spec"]["containers"]:
            container["env"] = {entry.pop("name"): entry for entry in container["env"]}
    return copy


@pytest.mark.parametrize(("example", "folders"), VARIANTS.items())
def test_kustomize_and_helm_render_the_same(example: str, folders: list[str]) -> None:
    ours, theirs = by_name(kustomize(*folders)), by_name(helm(example))
    assert ours.keys() == theirs.keys()
    for name, manifest in ours.items():
        assert theirs[name] == manifest, name


def test_every_folder_of_kustomize_and_every_example_of_the_chart_is_checked() -> None:
    checked = {folder for folders in FOLDERS for folder in folders}
    there = {
        str(path.parent.relative_to(KUSTOMIZE)) for path in KUSTOMIZE.rglob("kustomization.yaml")
    }
    assert there == checked
    assert {path.stem for path in (CHART / "examples").iterdir()} == set(VARIANTS) - {""}


@pytest.mark.parametrize("version", KUBERNETES)
def test_core_objects_hold_nothing_that_the_cluster_does_not_know(version: str) -> None:
    for manifest in everything():
        if manifest["kind"] not in CUSTOM:
            kubernetes_validate.validate(manifest, version, strict=True)


def test_custom_objects_fit_the_schemas_of_their_definitions() -> None:
    seen = set()
    for manifest in everything():
        schema = CUSTOM.get(manifest["kind"])
        if schema is not None:
            jsonschema.validate(manifest, schema, jsonschema.Draft202012Validator)
            seen.add(manifest["kind"])
    assert seen == set(CUSTOM)


@pytest.mark.parametrize("sample", SAMPLES)
def test_what_a_template_holds_of_the_core_is_known_too(sample: str) -> None:
    spec = of_kind(kustomize(sample), "SandboxTemplate")["spec"]
    for manifest in _core_parts(spec):
        for version in KUBERNETES:
            kubernetes_validate.validate(manifest, version, strict=True)


def _core_parts(spec: Manifest) -> Iterator[Manifest]:
    name = {"name": "of-a-template"}
    yield {"apiVersion": "v1", "kind": "Pod", "metadata": name, "spec": spec["podTemplate"]["spec"]}
    yield {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": name,
        "spec": {"podSelector": {}, **spec["networkPolicy"]},
    }


@pytest.mark.parametrize("example", VARIANTS)
def test_helm_s_linter_has_nothing_to_say(example: str) -> None:
    path = CHART / "examples" / f"{example}.yaml"
    assert lint_chart(yaml.safe_load(path.read_text()) if example else {}) == []


@pytest.mark.parametrize(
    "values",
    [
        {"registy": "dns"},
        {"registry": "local"},
        {"auth": {"mode": "open"}},
        {"settings": {"PROXY_TIMEOUT_SECONDS": 180}},
        {"settings": {"SANDGATE_KEYS": "/elsewhere"}},
        {"settings": {"ROUTER_AUTH_TOKEN": "in-plain-sight"}},
        {"drain": {"delaySeconds": 5}},
        {"gateway": {"enabled": True}},
        {"gateway": {"timeout": "1 day"}},
        {"sandboxes": {"pools": [{"name": "p", "replicas": 1, "internet": False}]}},
        {"sandboxes": {"pools": [{"name": "P", "runtimeClassName": "x", "replicas": 1}]}},
    ],
)
def test_wrong_values_are_refused(values: dict[str, object]) -> None:
    with pytest.raises(BadValues):
        render_chart(values)


def test_every_value_is_in_the_schema_and_has_a_default() -> None:
    def leaves(schema: Manifest, values: object, where: str = "") -> Iterator[str]:
        if schema.get("additionalProperties") is False and "properties" in schema:
            assert isinstance(values, dict), where
            for name, inner in schema["properties"].items():
                if name != "global":  # Helm's own
                    assert name in values, f"{where}{name} has no default"
                    yield from leaves(inner, values[name], f"{where}{name}.")
        else:
            yield where

    schema = json.loads((CHART / "values.schema.json").read_text("utf-8"))
    values = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
    jsonschema.validate(values, schema)
    assert len(list(leaves(schema, values))) > 40


def test_another_namespace_reaches_everything_that_names_it() -> None:
    shown = json.dumps([*helm(namespace="elsewhere"), *helm("pools", namespace="elsewhere")])
    assert NAMESPACE not in shown
    assert "sandgate:elsewhere" in shown
    assert "*/sandbox-router-svc,elsewhere/*" in shown


def test_all_versions_are_that_of_the_distribution() -> None:
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    version = project.partition('\nversion = "')[2].partition('"')[0]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))
    assert chart["version"] == chart["appVersion"] == version
    images = {image for manifest in everything() for image in _images(manifest)}
    assert images == {f"sandgate-router:{version}", f"sandgate-runtime:{version}"}


def _images(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "image" and isinstance(inner, str):
                yield inner
            yield from _images(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _images(inner)


def test_no_secret_is_among_the_files() -> None:
    assert all(manifest["kind"] != "Secret" for manifest in everything())
    for path in DEPLOY.rglob("*.yaml"):
        assert "kind: Secret\n" not in path.read_text("utf-8"), path
