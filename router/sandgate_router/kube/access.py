"""How the API is reached: its address, whom it trusts and whom we are.

In a pod, from the service account that Kubernetes mounts; elsewhere from a kubeconfig. Of that
the plain parts are read: a token or its file, a client certificate, a CA. Plug-ins that run
programs are refused with a word: a gateway does not start what a file names.
"""

import base64
import binascii
import contextlib
import os
import ssl
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")

REREAD_SECONDS = 10.0
"""How long a token from a file is believed. The kubelet writes a new one after 80 % of its life,
an hour by default; client-go reads it once a minute."""

_PLUG_INS = ("exec", "auth-provider", "username", "password", "as")


class BadAccess(Exception):
    """The API cannot be reached as configured; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Access:
    """How to get in."""

    server: str
    verify: ssl.SSLContext | None
    """None where the server is plain HTTP."""
    token: "TokenSource"


class TokenSource:
    """A bearer token, read again as its file changes."""

    def __init__(
        self,
        value: str = "",
        *,
        path: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take a token, or the path of its file; neither is none at all."""
        self._value = value
        self._path = path
        self._clock = clock
        self._read_at = -REREAD_SECONDS

    def __repr__(self) -> str:
        return f"<TokenSource {self._path or ('fixed' if self._value else 'none')}>"

    def value(self) -> str:
        """Return the token as it stands; empty for none. A file that is gone changes nothing."""
        now = self._clock()
        if self._path is not None and now - self._read_at >= REREAD_SECONDS:
            self._read_at = now
            with contextlib.suppress(OSError, UnicodeDecodeError):
                self._value = self._path.read_text("ascii").strip() or self._value
        return self._value

    def doubt(self) -> None:
        """Have the file read again at the next use: the API did not know the token."""
        self._read_at = -REREAD_SECONDS


def load_access(kubeconfig: Path | None, environ: Mapping[str, str] = os.environ) -> Access:
    """Return how to get in, by a kubeconfig if one is given, else as a pod.

    Raises:
        BadAccess: neither way is open.
    """
    return load_in_cluster(environ) if kubeconfig is None else load_kubeconfig(kubeconfig)


def load_in_cluster(environ: Mapping[str, str], folder: Path = SERVICE_ACCOUNT) -> Access:
    """Return a pod's access; raise BadAccess outside of one."""
    host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT")
    token = TokenSource(path=folder / "token")
    if not host or not port or not token.value():
        raise BadAccess(
            "the kubernetes registry finds no cluster: this is no pod with a service account"
            " token; set KUBECONFIG to a file that names one"
        )
    try:
        verify = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    except OSError as error:
        raise BadAccess(f"the cluster's CA {folder / 'ca.crt'} cannot be read: {error}") from error
    shown = f"[{host}]" if ":" in host else host
    return Access(f"https://{shown}:{port}", verify, token)


def load_kubeconfig(path: Path) -> Access:
    """Return the access of a kubeconfig's current context; raise BadAccess."""
    try:
        with path.open("rb") as file:
            content = yaml.safe_load(file)
    except OSError as error:
        several = " (it takes one file, not a list)" if os.pathsep in str(path) else ""
        raise BadAccess(f"KUBECONFIG {path} cannot be read: {error.strerror}{several}") from error
    except yaml.YAMLError as error:
        raise BadAccess(f"KUBECONFIG {path} is no YAML: {error}") from error
    try:
        return _build_access(_Entries(content), path.parent)
    except BadAccess as error:
        raise BadAccess(f"KUBECONFIG {path}: {error}") from error


class _Entries:
    """The named parts of a kubeconfig."""

    def __init__(self, content: object) -> None:
        self._content = content if isinstance(content, dict) else {}

    def current(self) -> Mapping[str, Any]:
        name = self._content.get("current-context")
        if not name:
            raise BadAccess("it has no current-context; set one: kubectl config use-context NAME")
        return self.find("contexts", "context", name)

    def find(self, plural: str, singular: str, name: object) -> Mapping[str, Any]:
        for entry in self._content.get(plural) or []:
            if isinstance(entry, dict) and entry.get("name") == name:
                found = entry.get(singular) or {}
                if isinstance(found, dict):
                    return found
        raise BadAccess(f"it has no {singular} {name!r}")


def _build_access(entries: _Entries, folder: Path) -> Access:
    context = entries.current()
    cluster = entries.find("clusters", "cluster", context.get("cluster"))
    user = entries.find("users", "user", context["user"]) if context.get("user") else {}
    for plug_in in _PLUG_INS:
        if user.get(plug_in):
            raise BadAccess(
                f"its user has `{plug_in}`, which is not supported; use a service account's token:"
                " kubectl create token NAME"
            )
    server = cluster.get("server")
    if not isinstance(server, str) or not server.startswith(("https://", "http://")):
        raise BadAccess("its cluster has no server like https://HOST:PORT")
    verify = _build_context(cluster, user, folder) if server.startswith("https:") else None
    return Access(server.rstrip("/"), verify, _build_token(user, folder))


def _build_token(user: Mapping[str, Any], folder: Path) -> TokenSource:
    if user.get("token"):
        return TokenSource(str(user["token"]))
    if user.get("tokenFile"):
        return TokenSource(path=folder / str(user["tokenFile"]))
    return TokenSource()


def _build_context(
    cluster: Mapping[str, Any], user: Mapping[str, Any], folder: Path
) -> ssl.SSLContext:
    if cluster.get("insecure-skip-tls-verify"):
        raise BadAccess("insecure-skip-tls-verify is not supported; give certificate-authority")
    try:
        authority = _content(cluster, "certificate-authority", folder)
        context = ssl.create_default_context(cadata=authority.decode() if authority else None)
        certificate = _content(user, "client-certificate", folder)
        key = _content(user, "client-key", folder)
        if certificate and key:
            with _private_file(certificate + b"\n" + key) as chain:
                context.load_cert_chain(chain)
    except (OSError, ValueError) as error:
        raise BadAccess(f"its certificates cannot be used: {error}") from error
    return context


def _content(entry: Mapping[str, Any], member: str, folder: Path) -> bytes | None:
    if inline := entry.get(f"{member}-data"):
        try:
            return base64.b64decode(str(inline), validate=True)
        except binascii.Error as error:
            raise BadAccess(f"{member}-data is no base64") from error
    return (folder / str(entry[member])).read_bytes() if entry.get(member) else None


@contextlib.contextmanager
def _private_file(content: bytes) -> Iterator[str]:
    """Yield the path of a file that only we can read: OpenSSL takes a key in no other way."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        yield file.name
