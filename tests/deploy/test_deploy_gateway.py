"""What one would check by hand before signing the deployment: every name, port and time in it
fits what it is meant for, down to the settings that the gateway accepts."""

from pathlib import PurePosixPath

import pytest
from deploy.manifests import NAMESPACE, Manifest, container, kustomize, of_kind, selects

from sandgate_router.config import Config
from sandgate_router.denied import Denied
from sandgate_router.errors import NotAllowedHere
from sandgate_router.kube import resources
from sandgate_router.names import Label, Port
from sandgate_router.target import Target


def ports_of(manifests: tuple[Manifest, ...]) -> dict[str, int]:
    return {port["name"]: port["containerPort"] for port in container(manifests)["ports"]}


def test_every_service_leads_to_a_port_on_which_the_gateway_listens(
    manifests: tuple[Manifest, ...], deployment: Manifest, config: Config
) -> None:
    listens = {"http": config.listen, "metrics": config.metrics_listen}
    services = [manifest for manifest in manifests if manifest["kind"] == "Service"]
    assert "sandbox-router-svc" in {service["metadata"]["name"] for service in services}
    for service in services:
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        assert selects(service["spec"]["selector"], labels)
        for port in service["spec"]["ports"]:
            address = listens[port["targetPort"]]
            assert address is not None
            assert ports_of(manifests)[port["targetPort"]] == address.port == port["port"]
            assert not address.is_loopback


def test_clients_find_it_under_the_name_and_port_that_they_know(
    manifests: tuple[Manifest, ...], deployment: Manifest
) -> None:
    service = of_kind(manifests, "Service", "sandbox-router-svc")
    assert service["metadata"]["namespace"] == NAMESPACE
    assert [port["port"] for port in service["spec"]["ports"]] == [8080]
    # The controller's default NetworkPolicy admits exactly this.
    assert deployment["metadata"]["namespace"] == NAMESPACE
    assert deployment["spec"]["template"]["metadata"]["labels"]["app"] == "sandbox-router"


def test_whatever_selects_pods_selects_the_gateway_s_and_no_other_router_s(
    manifests: tuple[Manifest, ...], deployment: Manifest
) -> None:
    ours = deployment["spec"]["template"]["metadata"]["labels"]
    selectors = [deployment["spec"]["selector"]["matchLabels"]]
    for manifest in manifests:
        spec = manifest.get("spec", {})
        if manifest["kind"] == "PodDisruptionBudget":
            selectors.append(spec["selector"]["matchLabels"])
        elif manifest["kind"] == "NetworkPolicy":
            selectors.append(spec["podSelector"]["matchLabels"])
        elif manifest["kind"] == "Service":
            selectors.append(spec["selector"])
    assert len(selectors) >= 4
    for selector in selectors:
        assert selects(selector, ours)
        assert not selects(selector, {"app": "sandbox-router"})
    target = of_kind(manifests, "HorizontalPodAutoscaler")["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == ("Deployment", deployment["metadata"]["name"])


def test_probes_ask_the_port_and_the_paths_that_the_gateway_serves(
    manifests: tuple[Manifest, ...],
) -> None:
    paths = {}
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        get = container(manifests)[probe]["httpGet"]
        assert get["port"] in ports_of(manifests)
        assert get["port"] == "http"
        paths[probe] = get["path"]
    # A gateway that drains is alive: it must not be killed for it.
    assert paths == {
        "startupProbe": "/livez",
        "livenessProbe": "/livez",
        "readinessProbe": "/readyz",
    }


def test_the_times_of_an_end_fit_each_other(
    manifests: tuple[Manifest, ...], pod: Manifest, config: Config
) -> None:
    before = container(manifests)["lifecycle"]["preStop"]["sleep"]["seconds"]
    total = before + config.drain_delay + config.drain_timeout
    # SIGKILL comes after all of it, and not long after.
    assert total + 5 <= pod["terminationGracePeriodSeconds"] <= total + 30
    # Whoever asks for readiness has seen it go before the first connection is refused.
    assert _seconds_to_notice(container(manifests)["readinessProbe"]) <= config.drain_delay
    # A request that came in last may wait as long for its answer as any other.
    assert config.drain_timeout >= config.proxy_timeout
    # A replica that goes is not followed by another before it has ended.
    down = of_kind(manifests, "HorizontalPodAutoscaler")["spec"]["behavior"]["scaleDown"]
    assert down["policies"][0]["value"] == 1
    assert down["policies"][0]["periodSeconds"] >= total - before


def _seconds_to_notice(probe: Manifest) -> float:
    seconds: float = probe["periodSeconds"] * probe["failureThreshold"]
    return seconds


def test_an_update_never_has_fewer_replicas_than_before(deployment: Manifest) -> None:
    assert deployment["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    # The autoscaler's to say; an apply would put it back.
    assert "replicas" not in deployment["spec"]


def test_two_replicas_are_the_least_and_one_may_always_go(manifests: tuple[Manifest, ...]) -> None:
    scaling = of_kind(manifests, "HorizontalPodAutoscaler")["spec"]
    assert scaling["maxReplicas"] >= scaling["minReplicas"] >= 2
    assert of_kind(manifests, "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1


def test_it_runs_with_nothing_that_it_does_not_need(
    manifests: tuple[Manifest, ...], pod: Manifest
) -> None:
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container(manifests)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod["enableServiceLinks"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC", "hostUsers"} & pod.keys()
    assert {"cpu", "memory"} <= container(manifests)["resources"]["requests"].keys()
    assert "memory" in container(manifests)["resources"]["limits"]


def test_files_that_settings_name_lie_in_folders_that_are_mounted_whole(
    manifests: tuple[Manifest, ...], pod: Manifest, config: Config
) -> None:
    mounts = {mount["mountPath"]: mount for mount in container(manifests).get("volumeMounts", [])}
    volumes = {volume["name"]: volume for volume in pod.get("volumes", [])}
    files = [path for path in (config.keys, config.callers, config.scoped_token_file) if path]
    assert {str(PurePosixPath(path).parent) for path in files} == set(mounts)
    for mount in mounts.values():
        # A single file of a Secret is never brought up to date.
        assert "subPath" not in mount
        assert mount["readOnly"] is True
        secret = volumes[mount["name"]]["secret"]
        # Owned by root, and readable by the group that the pod runs with, alone.
        assert secret["defaultMode"] == 0o440
        assert pod["securityContext"]["fsGroup"] == pod["securityContext"]["runAsGroup"]
        assert "optional" not in secret


def test_somebody_is_asked_for_a_credential(config: Config) -> None:
    assert config.effective_auth in {"capability", "shared"}


def test_only_a_gateway_with_that_registry_may_use_the_api_server(
    manifests: tuple[Manifest, ...], pod: Manifest, config: Config
) -> None:
    kinds = {manifest["kind"] for manifest in manifests}
    uses = config.registry == "kubernetes"
    assert pod["automountServiceAccountToken"] is uses
    assert ({"ClusterRole", "ClusterRoleBinding"} <= kinds) is uses
    egress = of_kind(manifests, "NetworkPolicy")["spec"]["egress"]
    ports = {port["port"] for rule in egress for port in rule.get("ports", [])}
    assert ports == ({443, 6443} if uses else {53})


def test_its_role_is_bound_to_it_alone(manifests: tuple[Manifest, ...], pod: Manifest) -> None:
    account = of_kind(manifests, "ServiceAccount")
    assert pod["serviceAccountName"] == account["metadata"]["name"]
    assert account["automountServiceAccountToken"] is False
    for binding in (m for m in manifests if m["kind"] == "ClusterRoleBinding"):
        role = of_kind(manifests, "ClusterRole")
        assert binding["roleRef"]["name"] == role["metadata"]["name"]
        assert binding["subjects"] == [
            {
                "kind": "ServiceAccount",
                "name": account["metadata"]["name"],
                "namespace": account["metadata"]["namespace"],
            }
        ]


def test_its_rights_are_these_and_no_more() -> None:
    role = of_kind(kustomize("base"), "ClusterRole")
    rights = {
        (group, resource): sorted(rule["verbs"])
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    assert rights == {
        ("agents.x-k8s.io", "sandboxes"): ["get", "list", "watch"],
        ("extensions.agents.x-k8s.io", "sandboxclaims"): [
            *("create", "delete", "get", "list", "patch", "watch"),
        ],
        ("extensions.agents.x-k8s.io", "sandboxwarmpools"): ["get", "list", "patch", "watch"],
        ("authentication.k8s.io", "tokenreviews"): ["create"],
        ("authorization.k8s.io", "subjectaccessreviews"): ["create"],
    }
    assert all(set(rule) == {"apiGroups", "resources", "verbs"} for rule in role["rules"])
    known = [value for value in vars(resources).values() if isinstance(value, resources.Resource)]
    assert {(resource.group, resource.plural) for resource in known} == set(rights)


def test_it_may_connect_to_sandboxes_on_any_port_and_to_no_other_pod(
    manifests: tuple[Manifest, ...],
) -> None:
    policy = of_kind(manifests, "NetworkPolicy")["spec"]
    assert sorted(policy["policyTypes"]) == ["Egress", "Ingress"]
    sandboxes, *others = policy["egress"]
    (peer,) = sandboxes["to"]
    assert "ports" not in sandboxes
    assert peer["podSelector"]["matchExpressions"] == [
        {"key": "agents.x-k8s.io/sandbox-name-hash", "operator": "Exists"}
    ]
    assert all(rule["ports"] for rule in others)


def test_what_listens_is_let_in_and_metrics_are_not_for_everyone(
    manifests: tuple[Manifest, ...],
) -> None:
    ingress = of_kind(manifests, "NetworkPolicy")["spec"]["ingress"]
    by_port = {rule["ports"][0]["port"]: rule for rule in ingress}
    assert set(by_port) == set(ports_of(manifests))
    assert "from" not in by_port["http"]
    assert by_port["metrics"]["from"]


@pytest.mark.parametrize(
    "name",
    [
        ("default", "kubernetes"),
        ("kube-system", "kube-dns"),
        (NAMESPACE, "sandbox-router-svc"),
        (NAMESPACE, "sandbox-router-metrics"),
        (NAMESPACE, "agent-sandbox-webhook-service"),
        ("anywhere", "sandbox-router-svc"),
    ],
)
def test_what_runs_beside_it_is_no_sandbox(config: Config, name: tuple[str, str]) -> None:
    namespace, sandbox = name
    with pytest.raises(NotAllowedHere):
        Denied(config.denied).check(
            Target(sandbox=Label(sandbox), namespace=Label(namespace), port=Port(8888))
        )


def test_every_default_of_the_denied_names_is_kept(config: Config) -> None:
    plain = Config.from_environ({"ROUTER_AUTH_TOKEN": "x"}, command="router")
    assert set(plain.denied) <= set(config.denied)


def test_all_but_the_entry_can_be_applied_first() -> None:
    """docs/migrating.md counts on it: the Service moves when the replicas are ready."""
    for folder in ("overlays/dns-only", "overlays/gke"):
        for manifest in kustomize(folder):
            component = manifest["metadata"]["labels"]["app.kubernetes.io/component"]
            entry = manifest["apiVersion"] == "v1" and manifest["kind"] == "Service"
            entry = entry or "gateway.networking" in manifest["apiVersion"]
            entry = entry or "networking.gke" in manifest["apiVersion"]
            assert component == ("entry" if entry else "gateway")


def test_every_variant_with_rights_has_the_same() -> None:
    base = of_kind(kustomize("base"), "ClusterRole")["rules"]
    for overlay in ("kind", "gke"):
        assert of_kind(kustomize(f"overlays/{overlay}"), "ClusterRole")["rules"] == base
