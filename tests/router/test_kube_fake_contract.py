"""The fake API server behaves as a real one does, as two foreign clients see it.

`kubernetes` is the project's own client, `kr8s` another's; neither knows our code. What they
are told here is what a real server was seen to answer.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.fake_kube import fake_kube_in_thread
from support.fake_kube.kinds import CLAIMS, POOLS, SANDBOXES, TEMPLATES
from support.fake_kube.objects import claim, sandbox, template, warm_pool
from support.fake_kube.server import ThreadedKube
from support.kube_clients import ClientRefused, ForeignClient, Kr8sClient, OfficialClient


@pytest.fixture
def kube() -> Iterator[ThreadedKube]:
    with fake_kube_in_thread(controller=False) as kube:
        yield kube


@pytest.fixture(params=[OfficialClient, Kr8sClient], ids=["kubernetes", "kr8s"])
def client(
    request: pytest.FixtureRequest, kube: ThreadedKube, tmp_path: Path
) -> Iterator[ForeignClient]:
    made: ForeignClient = request.param(kube.kube.kubeconfig(tmp_path))
    yield made
    made.close()


def refused(call: Callable[[], object]) -> tuple[int, str]:
    with pytest.raises(ClientRefused) as caught:
        call()
    return caught.value.code, caught.value.reason


def version(item: dict[str, Any]) -> int:
    return int(item["metadata"]["resourceVersion"])


def test_a_new_object_gets_a_uid_a_version_and_a_first_generation(client: ForeignClient) -> None:
    made = client.create(CLAIMS, claim("one"))
    assert made["metadata"]["generation"] == 1
    assert len(made["metadata"]["uid"]) == 36
    assert made["metadata"]["creationTimestamp"].endswith("Z")
    assert version(made) > 0
    assert client.get(CLAIMS, "one") == made


def test_a_name_is_taken_once(client: ForeignClient) -> None:
    client.create(CLAIMS, claim("one"))
    assert refused(lambda: client.create(CLAIMS, claim("one"))) == (409, "AlreadyExists")


@pytest.mark.parametrize(
    "item",
    [
        {"metadata": {"name": "one"}, "spec": {}},
        {"metadata": {"name": "one"}, "spec": {"warmPoolRef": {}}},
        claim("one", lifecycle={"shutdownTime": "tomorrow"}),
        claim("one", lifecycle={"shutdownPolicy": "Keep"}),
        claim("one", env=[{"value": "x"}]),
    ],
)
def test_what_the_schema_does_not_allow_is_refused(
    client: ForeignClient, item: dict[str, Any]
) -> None:
    assert refused(lambda: client.create(CLAIMS, item)) == (422, "Invalid")


def test_unknown_members_are_dropped_and_defaults_filled_in(client: ForeignClient) -> None:
    made = client.create(SANDBOXES, sandbox("one", unknown="member"))
    assert "unknown" not in made["spec"]
    assert made["spec"]["operatingMode"] == "Running"
    assert made["spec"]["podTemplate"]["spec"]["containers"]  # a pod's own members are kept


def test_what_is_missing_is_not_found(client: ForeignClient) -> None:
    assert refused(lambda: client.get(CLAIMS, "none")) == (404, "NotFound")
    assert refused(lambda: client.delete(CLAIMS, "none")) == (404, "NotFound")


def test_a_change_of_the_spec_makes_a_version_and_a_generation(client: ForeignClient) -> None:
    made = client.create(POOLS, warm_pool("py"))
    changed = client.merge(POOLS, "py", {"spec": {"replicas": 3}})
    assert changed["metadata"]["generation"] == 2
    assert version(changed) > version(made)
    labelled = client.merge(POOLS, "py", {"metadata": {"labels": {"a": "b"}}})
    assert labelled["metadata"]["generation"] == 2
    same = client.merge(POOLS, "py", {"spec": {"replicas": 3}})
    assert version(same) == version(labelled)


def test_null_in_a_merge_patch_removes_a_member(client: ForeignClient) -> None:
    client.create(CLAIMS, claim("one", lifecycle={"shutdownTime": "2030-01-01T00:00:00Z"}))
    changed = client.merge(CLAIMS, "one", {"spec": {"lifecycle": None}})
    assert "lifecycle" not in changed["spec"]


def test_the_status_is_a_resource_of_its_own(client: ForeignClient) -> None:
    client.create(SANDBOXES, sandbox("one") | {"status": {"podIPs": ["10.0.0.9"]}})
    assert "status" not in client.get(SANDBOXES, "one")
    client.merge(SANDBOXES, "one", {"status": {"podIPs": ["10.0.0.1"]}}, status=True)
    client.merge(SANDBOXES, "one", {"status": {"podIPs": ["10.0.0.2"]}})
    found = client.merge(SANDBOXES, "one", {"spec": {"service": True}}, status=True)
    assert found["status"]["podIPs"] == ["10.0.0.1"]
    assert "service" not in found["spec"]
    assert found["metadata"]["generation"] == 1


def test_an_old_version_is_not_replaced(client: ForeignClient) -> None:
    old = client.create(POOLS, warm_pool("py"))
    client.merge(POOLS, "py", {"spec": {"replicas": 2}})
    old["spec"]["replicas"] = 9
    assert refused(lambda: client.replace(POOLS, "py", old)) == (409, "Conflict")
    assert client.get(POOLS, "py")["spec"]["replicas"] == 2


def test_a_patch_may_insist_on_a_version_and_a_uid(client: ForeignClient) -> None:
    made = client.create(POOLS, warm_pool("py"))
    client.merge(POOLS, "py", {"spec": {"replicas": 2}})
    stale = {"metadata": {"resourceVersion": made["metadata"]["resourceVersion"]}, "spec": {}}
    assert refused(lambda: client.merge(POOLS, "py", stale)) == (409, "Conflict")
    other = {"metadata": {"uid": "another"}, "spec": {}}
    assert refused(lambda: client.merge(POOLS, "py", other)) == (409, "Conflict")


def test_lists_select_by_labels_and_fields(client: ForeignClient) -> None:
    for name, labels in (("a", {"app": "x"}), ("b", {"app": "y"}), ("c", None)):
        client.create(SANDBOXES, sandbox(name, labels=labels))

    def names(**selectors: str) -> list[str]:
        return [item["metadata"]["name"] for item in client.items(SANDBOXES, **selectors)]

    assert names() == ["a", "b", "c"]
    assert names(labels="app=x") == ["a"]
    assert names(labels="app!=x") == ["b", "c"]
    assert names(labels="app in (x,y)") == ["a", "b"]
    assert names(labels="!app") == ["c"]
    assert names(fields="metadata.name=b") == ["b"]


def test_a_watch_tells_each_step_and_ends_with_a_bookmark(
    client: ForeignClient, kube: ThreadedKube
) -> None:
    made = client.create(TEMPLATES, template("t"))
    client.merge(TEMPLATES, "t", {"spec": {"service": True}})
    client.create(TEMPLATES, template("other"))
    client.delete(TEMPLATES, "t")
    version = made["metadata"]["resourceVersion"]
    told = list(client.watch(TEMPLATES, version=version, fields="metadata.name=t"))
    assert [kind for kind, _ in told] == ["MODIFIED", "DELETED", "BOOKMARK"]
    versions = [int(item["metadata"]["resourceVersion"]) for _, item in told]
    assert versions == sorted(versions)
    assert versions[0] > int(version)
    assert versions[-1] <= kube.do(lambda kube: kube.store.version)


def test_a_watch_without_a_version_begins_with_all_there_is(client: ForeignClient) -> None:
    client.create(TEMPLATES, template("t"))
    told = list(client.watch(TEMPLATES, version="0"))
    assert [(kind, item["metadata"].get("name")) for kind, item in told][:1] == [("ADDED", "t")]


def test_a_version_that_has_expired_is_refused_inside_the_watch(
    client: ForeignClient, kube: ThreadedKube
) -> None:
    made = client.create(TEMPLATES, template("t"))
    kube.do(lambda kube: kube.store.forget_history())
    version = made["metadata"]["resourceVersion"]
    code, _ = refused(lambda: list(client.watch(TEMPLATES, version=version)))
    assert code == 410
