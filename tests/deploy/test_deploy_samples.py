"""What isolates a sandbox stands in its template, whole, and nobody who claims one changes it."""

import ipaddress
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from deploy.manifests import SAMPLES, Manifest, kustomize, of_kind

from sandgate_router.control.new_claim import parse_new_claim
from sandgate_router.errors import InvalidRequest
from sandgate_runtime.config import Config
from sandgate_runtime.guard import check_sender

MEMBERS_OF_A_CLAIM = {"name", "ports", "labels"}
"""Members of a claim's body that a template has too, with another meaning."""

PRIVATE = [
    "10.1.2.3",
    "172.20.0.1",
    "192.168.1.1",
    "100.64.0.1",
    "169.254.169.254",
    "fd00::1",
    "fe80::1",
]
PUBLIC = ["93.184.216.34", "2606:2800:220:1::1", "8.8.8.8"]


@pytest.fixture(params=SAMPLES)
def manifests(request: pytest.FixtureRequest) -> tuple[Manifest, ...]:
    return kustomize(request.param)


@pytest.fixture
def template(manifests: tuple[Manifest, ...]) -> Manifest:
    spec: Manifest = of_kind(manifests, "SandboxTemplate")["spec"]
    return spec


@pytest.fixture
def pod(template: Manifest) -> Manifest:
    spec: Manifest = template["podTemplate"]["spec"]
    return spec


@pytest.fixture
def container(pod: Manifest) -> Manifest:
    (found,) = pod["containers"]
    assert not pod.get("initContainers")
    assert isinstance(found, dict)
    return found


def test_a_template_carries_everything_that_isolates(pod: Manifest, container: Manifest) -> None:
    classes = {m["metadata"]["name"] for m in kustomize("samples/runtime-classes")}
    assert pod["runtimeClassName"] in classes
    assert pod["automountServiceAccountToken"] is False
    assert "serviceAccountName" not in pod
    assert pod["enableServiceLinks"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace"} & pod.keys()
    for size in ("cpu", "memory", "ephemeral-storage"):
        assert size in container["resources"]["limits"]
        assert size in container["resources"]["requests"]


def test_a_pod_is_admitted_where_the_restricted_standard_is_enforced(
    pod: Manifest, container: Manifest
) -> None:
    namespace = of_kind(kustomize("samples/namespace"), "Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert container["securityContext"]["privileged"] is False
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert all(set(volume) == {"name", "emptyDir"} for volume in pod["volumes"])


def test_everything_that_can_be_written_has_a_size(pod: Manifest, container: Manifest) -> None:
    sizes = {volume["name"]: volume["emptyDir"]["sizeLimit"] for volume in pod["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == set(sizes)
    limit = _bytes(container["resources"]["limits"]["ephemeral-storage"])
    assert sum(map(_bytes, sizes.values())) <= limit


def _bytes(quantity: str) -> int:
    found = re.fullmatch(r"(\d+)([KMG])i", quantity)
    assert found is not None
    factor: int = 1024 ** ("KMG".index(found[2]) + 1)
    return int(found[1]) * factor


def test_requests_come_from_the_gateway_alone(template: Manifest) -> None:
    gateway = of_kind(kustomize("base"), "Deployment")
    (rule,) = template["networkPolicy"]["ingress"]
    (peer,) = rule["from"]
    assert "ports" not in rule
    wanted = peer["podSelector"]["matchLabels"]
    assert wanted.items() <= gateway["spec"]["template"]["metadata"]["labels"].items()
    assert peer["namespaceSelector"]["matchLabels"] == {
        "kubernetes.io/metadata.name": gateway["metadata"]["namespace"]
    }
    assert template["networkPolicyManagement"] == "Managed"


@pytest.mark.parametrize("sample", ["samples/python", "samples/kata"])
def test_nothing_gets_out_unless_that_was_chosen(sample: str) -> None:
    template = of_kind(kustomize(sample), "SandboxTemplate")["spec"]
    assert template["networkPolicy"]["egress"] == []
    assert template["podTemplate"]["spec"]["dnsPolicy"] == "None"


def test_the_internet_is_no_way_into_the_cluster() -> None:
    template = of_kind(kustomize("samples/internet"), "SandboxTemplate")["spec"]
    (rule,) = template["networkPolicy"]["egress"]
    blocks = [peer["ipBlock"] for peer in rule["to"]]
    assert [address for address in PRIVATE if _is_open(address, blocks)] == []
    assert [address for address in PUBLIC if not _is_open(address, blocks)] == []
    resolvers = template["podTemplate"]["spec"]["dnsConfig"]["nameservers"]
    assert all(_is_open(resolver, blocks) for resolver in resolvers)


def _is_open(address: str, blocks: list[Manifest]) -> bool:
    ip = ipaddress.ip_address(address)
    return any(
        ip in ipaddress.ip_network(block["cidr"])
        and not any(ip in ipaddress.ip_network(part) for part in block["except"])
        for block in blocks
    )


def test_its_name_resolves(template: Manifest) -> None:
    assert template["service"] is True


def test_a_claim_brings_no_variables_and_no_volumes(template: Manifest) -> None:
    assert template["envVarsInjectionPolicy"] == "Disallowed"
    assert template["volumeClaimTemplatesPolicy"] == "Disallowed"


def test_no_member_of_a_template_can_be_said_in_a_claim(manifests: tuple[Manifest, ...]) -> None:
    template = of_kind(manifests, "SandboxTemplate")
    members = {*_keys(template), *_keys(of_kind(manifests, "SandboxWarmPool"))}
    # What a SandboxClaim itself could carry.
    members |= {"lifecycle", "additionalPodMetadata", "volumeClaimTemplates", "warmPoolRef"}
    assert {"runtimeClassName", "image", "env", "limits", "egress", "privileged"} <= members
    for member in sorted(members - MEMBERS_OF_A_CLAIM):
        with pytest.raises(InvalidRequest):
            parse_new_claim({"pool": "python", member: {}})


def _keys(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from _keys(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _keys(inner)


def test_a_pool_is_made_of_its_template_and_follows_it(manifests: tuple[Manifest, ...]) -> None:
    template = of_kind(manifests, "SandboxTemplate")["metadata"]
    pool = of_kind(manifests, "SandboxWarmPool")
    assert pool["metadata"]["namespace"] == template["namespace"]
    assert pool["spec"]["sandboxTemplateRef"]["name"] == template["name"]
    # Else a tighter template would not reach the members that stand ready.
    assert pool["spec"]["updateStrategy"] == {"type": "Recreate"}


def test_pools_have_names_of_their_own_and_fit_the_quota_together() -> None:
    pools = [of_kind(kustomize(sample), "SandboxWarmPool") for sample in SAMPLES]
    assert len({pool["metadata"]["name"] for pool in pools}) == len(pools)
    quota = of_kind(kustomize("samples/namespace"), "ResourceQuota")
    assert {pool["metadata"]["namespace"] for pool in pools} == {quota["metadata"]["namespace"]}
    assert sum(pool["spec"]["replicas"] for pool in pools) <= int(quota["spec"]["hard"]["pods"])


def test_the_runtime_starts_with_these_variables_and_knows_its_name(
    container: Manifest, tmp_path: Path
) -> None:
    variables = _environment(container, namespace="sandboxes", name="python-x7k2p")
    state = tmp_path / variables["SANDGATE_STATE_DIR"].lstrip("/")  # a volume of the pod
    base = tmp_path / "app"
    base.mkdir()
    state.mkdir(parents=True)
    variables["SANDGATE_STATE_DIR"] = str(state)
    config = Config.from_environ(variables, root=str(base))
    assert config.sandbox_name == "sandboxes/python-x7k2p"
    for name, refused in (("sandboxes/python-x7k2p", False), ("sandboxes/python-other", True)):
        sent = [(b"x-sandbox-expect-name", name.encode()), (b"x-sandbox-expect-uid", b"u-1")]
        found = check_sender(sent, name=config.sandbox_name, uid=config.sandbox_uid)
        assert (found is not None) is refused
    # Probes say nothing of the kind.
    assert check_sender([], name=config.sandbox_name, uid=config.sandbox_uid) is None


def _environment(container: Manifest, **fields: str) -> dict[str, str]:
    """Return the variables as the kubelet makes them of a pod's fields."""
    variables: dict[str, str] = {}
    for entry in container["env"]:
        if "valueFrom" in entry:
            path = entry["valueFrom"]["fieldRef"]["fieldPath"]
            variables[entry["name"]] = fields[path.removeprefix("metadata.")]
        else:
            variables[entry["name"]] = re.sub(
                r"\$\((\w+)\)", lambda found: variables[found[1]], entry["value"]
            )
    return variables


def test_what_the_runtime_keeps_is_on_a_volume_outside_the_workspace(container: Manifest) -> None:
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    state = {entry["name"]: entry.get("value") for entry in container["env"]}["SANDGATE_STATE_DIR"]
    assert state in mounts
    assert "/app" in mounts
    assert not str(state).startswith("/app")


def test_probes_ask_the_runtime_where_it_listens(container: Manifest) -> None:
    (port,) = container["ports"]
    assert port["containerPort"] == 8888
    for probe in ("startupProbe", "readinessProbe"):
        assert container[probe]["httpGet"] == {"path": "/v1/health", "port": port["name"]}
    # A sandbox that is busy is not to be killed for it, with all that it was given.
    assert "livenessProbe" not in container


def test_a_caller_may_claim_and_nothing_else() -> None:
    role = of_kind(kustomize("samples/callers"), "Role")
    assert role["rules"] == [
        {
            "apiGroups": ["extensions.agents.x-k8s.io"],
            "resources": ["sandboxclaims"],
            "verbs": ["create"],
        }
    ]
    account = of_kind(kustomize("samples/callers"), "ServiceAccount")
    binding = of_kind(kustomize("samples/callers"), "RoleBinding")
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert binding["subjects"][0]["name"] == account["metadata"]["name"]
