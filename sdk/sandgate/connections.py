"""Where the gateway is, and as whom to speak to it: checked when written down.

A wrong URL is told at once, with the line that wrote it, instead of at the first request. These
are values: what they describe is opened by the handle that gets one, and closed with it.
"""

import re
from dataclasses import dataclass, field
from urllib.parse import urlsplit

SERVICE = "sandbox-router-svc"
"""The gateway's Service, as the upstream project names it."""

SERVICE_NAMESPACE = "agent-sandbox-system"

_UNPRINTABLE = re.compile(r"[^\x21-\x7e]")
_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_DOMAIN = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Gateway:
    """A gateway at a fixed URL, such as `http://127.0.0.1:8080`.

    >>> Gateway("http://127.0.0.1:8080/").url
    'http://127.0.0.1:8080'
    """

    url: str
    """`http` or `https`, a host and perhaps a port; nothing behind it."""
    token: str | None = field(default=None, repr=False)
    """A caller's token for the control API; never sent to a sandbox. None sends none."""
    router_token: str | None = field(default=None, repr=False)
    """What the gateway has as ROUTER_AUTH_TOKEN: sent with requests to sandboxes, where it ends
    at the gateway, and with no others. None sends none."""
    ca: str | None = None
    """PEM file of the authorities that may have signed the gateway's certificate, in place of
    the usual ones."""
    client_cert: str | tuple[str, str] | None = None
    """PEM file of a certificate and its key, or a file for each; None shows none."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "url", parse_origin(self.url))
        _check_tokens(gateway=self.token, router=self.router_token)
        if self.url.startswith("http:") and (self.ca or self.client_cert):
            raise ValueError(f"gateway URL {self.url!r} has no TLS, so ca and client_cert are void")


@dataclass(frozen=True, slots=True)
class InCluster:
    """The gateway of the cluster that this program runs in, by the name of its Service."""

    namespace: str = SERVICE_NAMESPACE
    service: str = SERVICE
    port: int = 8080
    direct: bool = False
    """Whether sandboxes are dialled themselves, without the gateway and its fields; only the
    control API stays with it. Needs a network policy that admits this pod."""
    cluster_domain: str = "cluster.local"
    token: str | None = field(default=None, repr=False)
    router_token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        _check_service(self.service, self.namespace, self.port)
        if not _DOMAIN.fullmatch(self.cluster_domain):
            raise ValueError(f"cluster domain {self.cluster_domain!r} is no domain name")
        _check_tokens(gateway=self.token, router=self.router_token)

    @property
    def url(self) -> str:
        """Where the gateway is."""
        return f"http://{self.service}.{self.namespace}.svc.{self.cluster_domain}:{self.port}"


@dataclass(frozen=True, slots=True)
class Tunnel:
    """A gateway behind `kubectl port-forward`, which is run, watched and ended by the handle."""

    service: str = SERVICE
    namespace: str = SERVICE_NAMESPACE
    port: int = 8080
    """Of the Service."""
    context: str | None = None
    """Of the kubeconfig; None takes the current one."""
    kubectl: str = "kubectl"
    """The program, looked for on PATH."""
    ready_timeout: float = 30.0
    """Seconds that a call waits for the tunnel, at the start and after it broke."""
    token: str | None = field(default=None, repr=False)
    router_token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        _check_service(self.service, self.namespace, self.port)
        if self.context is not None and (not self.context or self.context.startswith("-")):
            raise ValueError(f"context {self.context!r} is no name of one")
        _check_tokens(gateway=self.token, router=self.router_token)


@dataclass(frozen=True, slots=True)
class Direct:
    """A runtime that is reached without any gateway: each claim is this one sandbox.

    A release leaves it as it is. For a runtime that runs by itself, as `sandgate runtime` does.
    """

    url: str
    sandbox: str = "direct"
    """The name that it goes by here, and what a runtime that knows its own name must know."""
    namespace: str = "default"
    uid: str | None = None
    """The generation that a runtime which knows its own is expected to be; None sends neither
    name nor generation."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "url", parse_origin(self.url))
        _check_label("sandbox", self.sandbox)
        _check_label("namespace", self.namespace)
        if self.uid is not None and (not self.uid or _UNPRINTABLE.search(self.uid)):
            raise ValueError(f"uid {self.uid!r} is empty or holds what no field can carry")


Connection = Gateway | InCluster | Tunnel | Direct
"""How a handle reaches its sandboxes; a program runs unchanged through each."""


def parse_origin(url: str) -> str:
    """Return `url` without its closing slash; raise ValueError unless it is a plain origin."""
    if _UNPRINTABLE.search(url):
        raise ValueError(f"gateway URL {url!r} holds a space, a control or a non-ASCII character")
    scheme, colons, _ = url.partition("://")
    if not colons or scheme.lower() not in {"http", "https"}:
        raise ValueError(
            f"gateway URL {url!r} does not begin with http:// or https://; "
            "write for example http://127.0.0.1:8080"
        )
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError as error:
        raise ValueError(f"gateway URL {url!r} has no port between 1 and 65535") from error
    if not parts.hostname or port == 0:
        raise ValueError(f"gateway URL {url!r} names no host and port that could be dialled")
    if parts.username is not None or parts.password is not None:
        # Not quoted: it holds a password.
        raise ValueError("the gateway URL holds a user name; pass the token as token=...")
    if parts.path not in {"", "/"} or parts.query or parts.fragment or url[-1] in "?#":
        raise ValueError(f"gateway URL {url!r} must end after the host and port")
    return f"{parts.scheme}://{parts.netloc}"


def _check_service(service: str, namespace: str, port: int) -> None:
    _check_label("service", service)
    _check_label("namespace", namespace)
    if not 0 < port <= 65535:
        raise ValueError(f"port {port!r} is not between 1 and 65535")


def _check_label(what: str, text: str) -> None:
    if not _LABEL.fullmatch(text):
        raise ValueError(f"{what} {text!r} is not a label (a-z, 0-9 and inner hyphens, at most 63)")


def _check_tokens(**tokens: str | None) -> None:
    for name, token in tokens.items():
        if token is not None and (not token or _UNPRINTABLE.search(token)):
            # Not quoted: it is a secret, and this text may end in a log.
            raise ValueError(f"the {name} token is empty or holds a space or a control character")
