"""How the API is reached: from a pod, or by the plain parts of a kubeconfig."""

import base64
import ssl
from pathlib import Path
from typing import Any

import pytest
import yaml

from sandgate_router.kube.access import (
    BadAccess,
    TokenSource,
    load_access,
    load_in_cluster,
    load_kubeconfig,
)

POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}


@pytest.fixture
def authority() -> bytes:
    """Return a CA as this machine trusts one: any will do."""
    path = ssl.get_default_verify_paths().cafile or "/etc/ssl/certs/ca-certificates.crt"
    text = Path(path).read_text()
    return (text.partition("-----END CERTIFICATE-----")[0] + "-----END CERTIFICATE-----\n").encode()


def write(folder: Path, *, cluster: dict[str, Any], user: dict[str, Any]) -> Path:
    path = folder / "config"
    content = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
    }
    path.write_text(yaml.safe_dump(content))
    return path


def test_a_pod_takes_its_service_account(tmp_path: Path, authority: bytes) -> None:
    (tmp_path / "token").write_text("first\n")
    (tmp_path / "ca.crt").write_bytes(authority)
    access = load_in_cluster(POD, tmp_path)
    assert access.server == "https://10.96.0.1:443"
    assert access.token.value() == "first"
    assert access.verify is not None
    assert access.verify.verify_mode == ssl.CERT_REQUIRED
    six = load_in_cluster({**POD, "KUBERNETES_SERVICE_HOST": "fd00::1"}, tmp_path)
    assert six.server == "https://[fd00::1]:443"


@pytest.mark.parametrize("environ", [{}, POD])
def test_outside_of_a_pod_one_is_told_what_to_set(environ: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(BadAccess, match="set KUBECONFIG"):
        load_in_cluster(environ, tmp_path)
    with pytest.raises(BadAccess):
        load_access(None, {})


def test_a_token_that_rotates_is_read_again(tmp_path: Path) -> None:
    path, now = tmp_path / "token", [0.0]
    path.write_text("first")
    source = TokenSource(path=path, clock=lambda: now[0])
    assert source.value() == "first"
    path.write_text("second")
    assert source.value() == "first"
    now[0] = 10.0
    assert source.value() == "second"
    path.write_text("third")
    source.doubt()
    assert source.value() == "third"
    path.unlink()
    now[0] = 30.0
    assert source.value() == "third"
    assert "third" not in repr(source)


def test_a_kubeconfig_with_a_token(tmp_path: Path, authority: bytes) -> None:
    data = base64.b64encode(authority).decode()
    cluster = {"server": "https://kube.example:6443/", "certificate-authority-data": data}
    access = load_kubeconfig(write(tmp_path, cluster=cluster, user={"token": "t"}))
    assert (access.server, access.token.value()) == ("https://kube.example:6443", "t")
    assert access.verify is not None


def test_files_are_found_beside_the_kubeconfig(tmp_path: Path, authority: bytes) -> None:
    (tmp_path / "ca.crt").write_bytes(authority)
    (tmp_path / "token").write_text("t")
    cluster = {"server": "https://kube.example", "certificate-authority": "ca.crt"}
    access = load_kubeconfig(write(tmp_path, cluster=cluster, user={"tokenFile": "token"}))
    assert access.token.value() == "t"


@pytest.mark.parametrize(
    ("cluster", "user", "said"),
    [
        ({}, {"exec": {"command": "aws"}}, "`exec`, which is not supported"),
        ({}, {"auth-provider": {"name": "gcp"}}, "`auth-provider`, which is not supported"),
        ({}, {"username": "u", "password": "p"}, "`username`, which is not supported"),
        ({"insecure-skip-tls-verify": True}, {}, "insecure-skip-tls-verify is not supported"),
        ({"server": "kube.example"}, {}, "no server like https://HOST:PORT"),
        ({"certificate-authority-data": "!"}, {}, "no base64"),
        ({"certificate-authority": "none.crt"}, {}, "cannot be used"),
    ],
)
def test_what_is_not_supported_is_said(
    tmp_path: Path, cluster: dict[str, Any], user: dict[str, Any], said: str
) -> None:
    path = write(tmp_path, cluster={"server": "https://kube.example"} | cluster, user=user)
    with pytest.raises(BadAccess, match=said) as caught:
        load_kubeconfig(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{}", "no current-context"),
        ("current-context: x", "no context 'x'"),
        ("a: [", "no YAML"),
    ],
)
def test_a_file_that_is_no_kubeconfig_is_said(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "config"
    path.write_text(content)
    with pytest.raises(BadAccess, match=said):
        load_kubeconfig(path)


def test_a_list_of_files_is_not_taken(tmp_path: Path) -> None:
    with pytest.raises(BadAccess, match="one file, not a list"):
        load_kubeconfig(Path(f"{tmp_path}/a:{tmp_path}/b"))
