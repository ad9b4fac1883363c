from pathlib import Path

import pytest

from sandgate_router.config import BadConfig
from sandgate_router.names import Label
from sandgate_router.registry.local.pools import DEFAULT_POOLS, load_pools, parse_pools

FAULTS = [
    ("name: Py", "is not a label"),
    ("name: a\n  namespace: '-'", "namespace"),
    ("warm: 1", "missing required field `name`"),
    ("name: a\n  warm: '1'", "Expected `int`, got `str`"),
    ("name: a\n  warm: true", "Expected `int`, got `bool`"),
    ("name: a\n  warm: 5\n  max: 4", "warm 5 is not between 0 and max (4)"),
    ("name: a\n  warm: 0\n  max: 0", "max 0 is not at least 1"),
    ("name: a\n  lease_seconds: 0", "lease_seconds 0.0 is not a finite number"),
    ("name: a\n  idle_seconds: .nan", "idle_seconds nan is not a finite number"),
    ("name: a\n  max_age_seconds: 1000000000", "max_age_seconds 1000000000 is more than a year"),
    ("name: a\n  memory_bytes: 512", "memory_bytes 512 is not at least 1048576"),
    ("name: a\n  cpu_seconds: 0", "cpu_seconds 0 is not at least 1"),
    ("name: a\n  isolation: docker", "isolation"),
    ("name: a\n  network: bridge", "network"),
    ("name: a\n  image: python", "'image' is no member of a pool"),
    ("name: a\n  env: {A-B: x}", "env: name 1 is no variable's"),
    ("name: a\n  env: {SANDGATE_ISOLATED: '1'}", "env SANDGATE_ISOLATED is set by the gateway"),
    ('name: a\n  env: {A: "x\\0y"}', "env A holds a NUL"),
]


def test_a_pools_file_is_read_with_its_defaults(tmp_path: Path) -> None:
    path = tmp_path / "pools.yaml"
    path.write_text("pools:\n- name: a\n  warm: 2\n  env: {A: b}\n- {name: a, namespace: team}\n")
    first, second = load_pools(path).pools
    assert (first.name, first.namespace, first.warm, first.max) == ("a", "default", 2, 32)
    assert first.env == {"A": "b"}
    assert (second.namespace, second.workspace_bytes) == ("team", 1024**3)


@pytest.mark.parametrize(("entry", "message"), FAULTS)
def test_a_wrong_pool_is_refused_with_a_sentence(tmp_path: Path, entry: str, message: str) -> None:
    path = tmp_path / "pools.yaml"
    path.write_text(f"pools:\n- {entry}\n")
    with pytest.raises(BadConfig) as refused:
        load_pools(path)
    assert message in str(refused.value)
    assert str(path) in str(refused.value)
    assert "pool 1" in str(refused.value)


def test_all_faults_of_a_file_are_told_at_once() -> None:
    content = {"pools": [{"name": "A"}, {"name": "b", "warm": -1, "x": 1}, 7], "quota": {}}
    with pytest.raises(BadConfig) as refused:
        parse_pools(content)
    assert len(refused.value.faults) == 5


@pytest.mark.parametrize("content", [None, [], {}, {"pools": None}, {"pools": []}])
def test_a_file_without_pools_is_refused(content: object) -> None:
    with pytest.raises(BadConfig, match="pools"):
        parse_pools(content)


def test_two_pools_of_one_name_are_refused() -> None:
    with pytest.raises(BadConfig, match="has that name"):
        parse_pools({"pools": [{"name": "a"}, {"name": "a"}]})


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("pools: [", "it is no YAML there"),
        ("\x00", "it is no YAML"),
        (None, "cannot be read: No such file"),
        ('pools: [{name: a, env: {KEY: "hunter2" x}}]', "it is no YAML there"),
        ("pools: [{name: a, env: {KEY: *hunter2}}]", "it is no YAML there"),
        ("pools: [{name: a, env: {'KEY=hunter2': ''}}]", "env: name 1 is no variable's"),
        ("pools: [{name: a, KEY hunter2: }]", "what is no plain word is no member of a pool"),
        ("pools: [{name: a, env: {A: b}, warm: 2026-02-30}]", "a date, a number or the like"),
    ],
)
def test_a_file_that_cannot_be_used_is_told_without_a_value_of_it(
    tmp_path: Path, text: str | None, fault: str
) -> None:
    path = tmp_path / "pools.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(BadConfig) as caught:
        load_pools(path)
    (found,) = caught.value.faults
    assert found.startswith(f"pools file {path}")
    assert fault in found
    assert "hunter2" not in found


def test_without_a_file_there_is_one_pool_of_four() -> None:
    (only,) = DEFAULT_POOLS
    assert (only.name, only.namespace, only.warm, only.max) == ("python", "default", 4, 32)


def test_quotas_are_read_by_namespace_with_one_for_every_other() -> None:
    file = parse_pools({"pools": [{"name": "a"}], "quotas": {"*": 100, "team": 0}})
    assert [file.quota(Label(name)) for name in ("team", "default")] == [0, 100]
    assert parse_pools({"pools": [{"name": "a"}]}).quota(Label("default")) is None
    assert parse_pools({"pools": [{"name": "a"}], "quotas": {"b": 1}}).quota(Label("a")) is None


@pytest.mark.parametrize(
    ("quotas", "message"),
    [
        (100, "`quotas` is no mapping"),
        ([], "`quotas` is no mapping"),
        ({"*": "100"}, "quota of '*': '100' is not a whole number of claims"),
        ({"*": True}, "True is not a whole number"),
        ({"*": -1}, "-1 is not a whole number"),
        ({"*": 1.5}, "1.5 is not a whole number"),
        ({"A b": 1}, "quota of 'A b': the namespace b'A b' is not a label"),
        ({"": 1}, "quota of ''"),
        ({7: "x"}, "quota of 7: 'x'"),
        ({7: 1}, "quota of 7: write the namespace in quotes"),
        ({True: 1}, "quota of True: write the namespace in quotes"),
    ],
)
def test_wrong_quotas_are_refused_with_a_sentence(quotas: object, message: str) -> None:
    with pytest.raises(BadConfig) as refused:
        parse_pools({"pools": [{"name": "a"}], "quotas": quotas})
    assert message in str(refused.value)
