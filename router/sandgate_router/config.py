"""The gateway's settings: one frozen value, read once, refused when wrong.

Every setting has a row here with its unit, its default and what it is for;
docs/configuration.md is compared with these rows by a test. All faults are listed at once.
Nothing is read when this module is imported.
"""

import ipaddress
import re
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

Command = Literal["up", "router"]
IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network

FOR_OTHERS = frozenset(
    {
        "SANDGATE_URL",
        "SANDGATE_TOKEN",
        "SANDGATE_ROUTER_TOKEN",
        "SANDGATE_COMMAND_CPU_SECONDS",
        "SANDGATE_COMMAND_MEMORY_BYTES",
        "SANDGATE_ISOLATED",
        "SANDGATE_MAX_PROCESSES",
        "SANDGATE_SANDBOX_NAME",
        "SANDGATE_SANDBOX_UID",
        "SANDGATE_STATE_DIR",
    }
)
"""Variables of the handle and of the runtime: a gateway may be started where they are set."""

NOT_YET = frozenset(
    {
        "SANDGATE_ACCESS_LOG",
        "SANDGATE_AUDIENCE",
        "SANDGATE_CALLERS",
        "SANDGATE_DENIED",
        "SANDGATE_KEYS",
        "SANDGATE_POD_IP",
        "SANDGATE_SCOPED_TOKEN_FILE",
        "SANDGATE_TLS_CERT",
        "SANDGATE_TLS_CLIENT_CA",
        "SANDGATE_TLS_KEY",
        "SANDGATE_TLS_MTLS",
        "SANDGATE_UPSTREAM_NETWORKS",
        "SANDGATE_WORKERS",
    }
)
"""Settings that are planned. Most of them restrict something, so they are never overlooked."""

_SERVICE_LINK = re.compile(
    r"SANDGATE_(?:\w+_)?(?:SERVICE_HOST|SERVICE_PORT(?:_\w+)?|PORT_[0-9]+_(?:TCP|UDP|SCTP)\w*)=.*"
    r"|SANDGATE_(?:\w+_)?PORT=(?:tcp|udp|sctp)://.*",
    re.ASCII | re.DOTALL,
)
"""What Kubernetes sets in every pod of a namespace that has a Service called `sandgate…`."""

_GIVE_ONE = "give ROUTER_AUTH_TOKEN, or state ALLOW_UNAUTHENTICATED_ROUTER=true"

_TRUE = frozenset({"1", "true", "t", "yes", "y", "on"})
_FALSE = frozenset({"", "0", "false", "f", "no", "n", "off"})


class BadConfig(Exception):
    """Settings that cannot be used; `faults` lists every one, each in a sentence."""

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = tuple(faults)


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """Where a listener is bound; port 0 takes any."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        return self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback


def _parse_listen(text: str) -> ListenAddress:
    match = re.fullmatch(
        r"(?:\[(?P<v6>[^\]]*:[^\]]*)\]|(?P<host>[^\[\]:]+)):(?P<port>[0-9]{1,5})", text
    )
    if match is None or int(match["port"]) > 65535:
        raise ValueError("is not HOST:PORT; an IPv6 address stands in brackets")
    host, port = match["v6"] or match["host"], match["port"]
    if host != "localhost":
        try:
            ipaddress.ip_address(host)
        except ValueError:
            raise ValueError("names a host; give its IP address") from None
    return ListenAddress(host, int(port))


def _parse_optional_listen(text: str) -> ListenAddress | None:
    return _parse_listen(text) if text else None


def _parse_seconds(text: str) -> float:
    seconds = _parse_optional_seconds(text)
    if seconds == 0:
        raise ValueError("is not a number of seconds above 0")
    return seconds


def _parse_optional_seconds(text: str) -> float:
    # Plain decimals, as everywhere here: `float()` would also take `1_0`, `nan` and `inf`.
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{0,9})?|\.[0-9]{1,9}", text):
        raise ValueError("is not a number of seconds")
    return float(text)


def _parse_count(text: str) -> int:
    if not re.fullmatch("[0-9]{1,9}", text):
        raise ValueError("is not a whole number")
    return int(text)


def _parse_bytes(text: str) -> int:
    if not re.fullmatch("[0-9]{1,18}", text):
        raise ValueError("is not a whole number of bytes")
    return int(text)


def _parse_flag(text: str) -> bool:
    lowered = text.strip().lower()
    if lowered not in _TRUE | _FALSE:
        raise ValueError("is neither true nor false")
    return lowered in _TRUE


def _parse_networks(text: str) -> tuple[IpNetwork, ...]:
    return tuple(_parse_network(part.strip()) for part in text.split(",") if part.strip())


def _parse_network(text: str) -> IpNetwork:
    try:
        return ipaddress.ip_network(text)
    except ValueError:
        raise ValueError(f"holds {text!r}, which is no network like 10.0.0.0/8") from None


def _parse_secret(text: str) -> str | None:
    secret = text.strip()
    if not secret:
        return None
    if not re.fullmatch(r"[\x21-\x7e]+", secret):
        raise ValueError("holds a space or a character that no Authorization header can carry")
    return secret


def _parse_domain(text: str) -> str:
    label = "[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
    # 253 for a whole name (RFC 1035 2.3.4), less `<id>.<namespace>.svc.`
    if len(text) > 121 or not re.fullmatch(rf"{label}(\.{label})*", text):
        raise ValueError("is not a domain name")
    return text


def _parse_registry(text: str) -> str:
    if text == "local" or (text.startswith("static:") and len(text) > len("static:")):
        return text
    if text in {"dns", "kubernetes"}:
        raise ValueError("is not available in this version; use local or static:FILE")
    raise ValueError("is none of local, static:FILE")


def _parse_auth(text: str) -> str:
    if text == "capability":
        raise ValueError("is not available in this version; use shared or none")
    return _one_of("shared", "none")(text)


def _one_of(*choices: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"is none of {', '.join(choices)}")
        return text

    return parse


def _parse_path(text: str) -> Path | None:
    return Path(text) if text else None


def _setting(
    name: str,
    parse: Callable[[str], Any],
    default: str | Mapping[Command, str],
    *,
    flag: str = "",
    unit: str = "",
) -> Any:
    defaults = {"up": default, "router": default} if isinstance(default, str) else default
    return field(
        metadata={"name": name, "parse": parse, "defaults": defaults, "flag": flag, "unit": unit}
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All settings of one gateway process."""

    listen: ListenAddress = _setting(
        "SANDGATE_LISTEN",
        _parse_listen,
        {"up": "127.0.0.1:8080", "router": "0.0.0.0:8080"},
        flag="--listen",
    )
    """Where clients connect; port 0 takes any."""
    metrics_listen: ListenAddress | None = _setting(
        "SANDGATE_METRICS_LISTEN",
        _parse_optional_listen,
        {"up": "", "router": "0.0.0.0:9090"},
        flag="--metrics-listen",
    )
    """Where /metrics is served; empty turns it off."""
    registry: str = _setting(
        "SANDGATE_REGISTRY", _parse_registry, {"up": "local", "router": "dns"}, flag="--registry"
    )
    """What knows the sandboxes: local or static:FILE."""
    pools: Path | None = _setting("SANDGATE_POOLS", _parse_path, "", flag="--pools")
    """A YAML file of pools; empty means one pool `python` in `default`."""
    isolation: str = _setting(
        "SANDGATE_ISOLATION", _one_of("bubblewrap", "none"), "bubblewrap", flag="--isolation"
    )
    """How local sandboxes are isolated; none is for code that you trust."""
    auth: str | None = _setting(
        "SANDGATE_AUTH", lambda text: _parse_auth(text) if text else None, "", flag="--auth"
    )
    """Who may use the relay: shared or none; empty decides by the other settings."""
    router_auth_token: str | None = _setting("ROUTER_AUTH_TOKEN", _parse_secret, "")
    """The bearer token of `shared`."""
    allow_unauthenticated: bool = _setting("ALLOW_UNAUTHENTICATED_ROUTER", _parse_flag, "false")
    """Whether `router` may run without any credential."""
    proxy_timeout: float = _setting("PROXY_TIMEOUT_SECONDS", _parse_seconds, "180", unit="seconds")
    """Longest wait for a response head and for every later gap; caps X-Sandbox-Timeout."""
    cluster_domain: str = _setting("CLUSTER_DOMAIN", _parse_domain, "cluster.local")
    """The domain in the Host field that a sandbox sees."""
    trusted_proxies: tuple[IpNetwork, ...] = _setting("TRUSTED_PROXY_CIDRS", _parse_networks, "")
    """Networks whose X-Forwarded-* fields are kept, separated by commas."""
    drain_delay: float = _setting(
        "SANDGATE_DRAIN_DELAY", _parse_optional_seconds, "5", unit="seconds"
    )
    """How long requests are still served after SIGTERM took readiness away; 0 is allowed."""
    drain_timeout: float = _setting("SANDGATE_DRAIN_TIMEOUT", _parse_seconds, "30", unit="seconds")
    """How long exchanges under way may take to finish after that."""
    keep_origin: bool = _setting("SANDGATE_KEEP_ORIGIN", _parse_flag, "false")
    """Whether Origin passes on a WebSocket handshake; it does not match the Host that we send."""
    websocket_idle_timeout: float = _setting(
        "WEBSOCKET_IDLE_TIMEOUT_SECONDS", _parse_optional_seconds, "3600", unit="seconds"
    )
    """Longest silence of a WebSocket, any byte counting; 0 has no limit."""
    websocket_max_lifetime: float = _setting(
        "WEBSOCKET_MAX_LIFETIME_SECONDS", _parse_optional_seconds, "86400", unit="seconds"
    )
    """Longest life of a WebSocket; 0 has no limit."""
    websocket_max_connections_per_client: int = _setting(
        "WEBSOCKET_MAX_CONNECTIONS_PER_CLIENT", _parse_count, "64"
    )
    """WebSockets of one client address at once; 0 has no limit."""
    max_inflight_per_sandbox: int = _setting(
        "SANDGATE_MAX_INFLIGHT_PER_SANDBOX", _parse_count, "256"
    )
    """Requests and WebSockets of one sandbox at once; 0 has no limit. One that hangs must not
    hold the connections of all others; Envoy lets 1,024 through to a whole cluster."""
    max_body_bytes: int = _setting("SANDGATE_MAX_BODY_BYTES", _parse_bytes, "0", unit="bytes")
    """Largest content of a request to a sandbox; 0 has no limit. It streams, so it costs the
    gateway nothing, and what a sandbox can take is the sandbox's to say."""
    max_connections: int = _setting("SANDGATE_MAX_CONNECTIONS", _parse_count, "0")
    """Client connections at once, at most half of the descriptors, which 0 takes: an exchange
    needs a second one for its sandbox."""

    @classmethod
    def from_environ(
        cls,
        environ: Mapping[str, str],
        *,
        command: Command,
        flags: Mapping[str, str] | None = None,
    ) -> "Config":
        """Read every setting; a flag, named like its variable, wins over the environment.

        Raises:
            BadConfig: with all faults, before anything listens.
        """
        flags = flags or {}
        faults = _name_faults(environ, flags, known={row.metadata["name"] for row in fields(cls)})
        values: dict[str, Any] = {}
        for row in fields(cls):
            name = row.metadata["name"]
            text = flags.get(name, environ.get(name, row.metadata["defaults"][command]))
            try:
                values[row.name] = row.metadata["parse"](text)
            except ValueError as error:
                shown = "" if name == "ROUTER_AUTH_TOKEN" else f" {text!r}"
                faults.append(f"{name}{shown} {error}")
        faults.extend(_conflicts(values, command))
        if faults:
            raise BadConfig(faults)
        return cls(**values)

    @property
    def effective_auth(self) -> str:
        """`shared` or `none`, once the unset default is decided."""
        if self.auth is not None:
            return self.auth
        return "shared" if self.router_auth_token else "none"


def _name_faults(
    environ: Mapping[str, str], flags: Mapping[str, str], *, known: AbstractSet[str]
) -> list[str]:
    """Return a fault for each name that is meant for us and does nothing here.

    A misspelt SANDGATE_AUTH must not open a gateway, so it is no warning. Names without our
    prefix may be anybody's.
    """
    faults = []
    ours = {
        name
        for name, text in environ.items()
        if name.startswith("SANDGATE_") and not _SERVICE_LINK.fullmatch(f"{name}={text}")
    }
    for name in sorted((ours - FOR_OTHERS | flags.keys()) - known):
        if name not in NOT_YET:
            faults.append(f"{name} is no setting of the gateway")
        elif flags.get(name, environ.get(name)):
            faults.append(f"{name} is not available in this version")
    return faults


def _conflicts(values: Mapping[str, Any], command: Command) -> list[str]:
    """Return the faults of settings that are right by themselves; `values` may lack wrong ones."""
    if not {"auth", "router_auth_token", "allow_unauthenticated", "listen"} <= values.keys():
        return []
    auth, token = values["auth"], values["router_auth_token"]
    if auth == "shared" and token is None:
        return ["SANDGATE_AUTH shared needs ROUTER_AUTH_TOKEN"]
    if auth is not None or token is not None or values["allow_unauthenticated"]:
        return []
    if command == "router":
        return [f"no credential is set: {_GIVE_ONE}"]
    listen: ListenAddress = values["listen"]
    if not listen.is_loopback:
        return [f"SANDGATE_LISTEN {listen.host} is no loopback address: {_GIVE_ONE}"]
    return []
