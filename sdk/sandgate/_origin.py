"""Where requests go: the URL of a connection, and what has to run for it.

A gateway and a Service have one URL. A tunnel has one as long as it stands, so it is asked for
each request and may have to be waited for.
"""

from typing import TYPE_CHECKING, Protocol

from sandgate._wire.control import Control
from sandgate._wire.lease import Access
from sandgate.connections import Connection, Direct, Gateway, InCluster, Tunnel
from sandgate.types import Claim

if TYPE_CHECKING:
    import ssl


class Origin(Protocol):
    """Where a gateway can be reached now."""

    @property
    def label(self) -> str:
        """What to call it in a message."""

    @property
    def ready_url(self) -> str | None:
        """The URL, if nobody has to wait for it."""

    def wait_url(self) -> str:
        """Return the URL; raise TunnelFailed where none comes in time."""

    def close(self) -> None:
        """End what runs for it; doing so again is no error."""


class FixedOrigin:
    """An origin that is always there."""

    def __init__(self, url: str) -> None:
        self.label = url
        self.ready_url = url

    def wait_url(self) -> str:
        """Return the URL."""
        return self.ready_url

    def close(self) -> None:
        """Nothing runs."""


def open_origin(connection: Connection) -> Origin:
    """Return where the requests of a connection go; start what has to run for it."""
    if isinstance(connection, Tunnel):
        from sandgate._tunnel import RunningTunnel

        return RunningTunnel(connection)
    return FixedOrigin(connection.url)


def build_access(connection: Connection) -> Access:
    """Return how the sandboxes of a connection are reached."""
    if isinstance(connection, Direct):
        return Access(
            Control(), origin=lambda _, port: _with_port(connection.url, port), claims=False
        )
    control = Control(token=connection.token)
    if isinstance(connection, InCluster) and connection.direct:
        domain = connection.cluster_domain
        return Access(control, origin=lambda claim, port: _pod_origin(claim, port, domain))
    return Access(control, router_token=connection.router_token)


def direct_claim(connection: Connection) -> Claim | None:
    """Return the one sandbox of a connection without a control API; None for any other."""
    if not isinstance(connection, Direct):
        return None
    return Claim(
        name="",
        namespace=connection.namespace,
        sandbox=connection.sandbox,
        port=url_port(connection.url),
        isolation="unknown",
        uid=connection.uid,
    )


def build_tls(connection: Connection) -> "ssl.SSLContext | bool":
    """Return what httpx is to verify with; False where there is no TLS."""
    if not isinstance(connection, Gateway) or connection.url.startswith("http:"):
        return False  # reading the usual authorities takes longer than a claim
    import ssl

    if connection.ca is None and connection.client_cert is None:
        return True
    context = ssl.create_default_context(cafile=connection.ca)
    if isinstance(connection.client_cert, str):
        context.load_cert_chain(connection.client_cert)
    elif connection.client_cert is not None:
        context.load_cert_chain(*connection.client_cert)
    return context


def url_port(url: str) -> int:
    """Return the port of a plain origin."""
    scheme, _, host = url.partition("://")
    _, colon, port = host.rpartition(":")
    if colon and port.isdecimal():
        return int(port)
    return 443 if scheme == "https" else 80


def _with_port(url: str, port: int) -> str:
    if url_port(url) == port:
        return url
    scheme, _, host = url.partition("://")
    name, colon, digits = host.rpartition(":")
    return f"{scheme}://{name if colon and digits.isdecimal() else host}:{port}"


def _pod_origin(claim: Claim, port: int, domain: str) -> str:
    return f"http://{claim.sandbox}.{claim.namespace}.svc.{domain}:{port}"
