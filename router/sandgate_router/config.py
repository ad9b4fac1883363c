"""The gateway's settings: one frozen value, read once, refused when wrong.

Every setting has a row here with its unit, its default and what it is for;
docs/configuration.md is compared with these rows by a test. All faults are listed at once.
Nothing is read when this module is imported.
"""

import ipaddress
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

Command = Literal["up", "router"]
IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network

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
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not re.fullmatch("[0-9]{1,5}", port) or int(port) > 65535:
        raise ValueError("is not HOST:PORT")
    if host != "localhost":
        try:
            ipaddress.ip_address(host)
        except ValueError:
            raise ValueError("names a host; give its IP address") from None
    return ListenAddress(host, int(port))


def _parse_optional_listen(text: str) -> ListenAddress | None:
    return _parse_listen(text) if text else None


def _parse_seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        raise ValueError("is not a number of seconds") from None
    if not math.isfinite(seconds) or seconds <= 0:
        raise ValueError("is not a finite number of seconds above 0")
    return seconds


def _parse_optional_seconds(text: str) -> float:
    return 0.0 if text in {"0", "0.0"} else _parse_seconds(text)


def _parse_flag(text: str) -> bool:
    lowered = text.strip().lower()
    if lowered not in _TRUE | _FALSE:
        raise ValueError("is neither true nor false")
    return lowered in _TRUE


def _parse_networks(text: str) -> tuple[IpNetwork, ...]:
    return tuple(ipaddress.ip_network(part.strip()) for part in text.split(",") if part.strip())


def _parse_secret(text: str) -> str | None:
    secret = text.strip()
    if not secret:
        return None
    if not re.fullmatch(r"[\x21-\x7e]+", secret):
        raise ValueError("holds a space or a character that no Authorization header can carry")
    return secret


def _parse_domain(text: str) -> str:
    if not re.fullmatch(r"[a-z0-9]([a-z0-9.-]{0,120}[a-z0-9])?", text):
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
    name: str, parse: Callable[[str], Any], default: str | Mapping[Command, str], *, unit: str = ""
) -> Any:
    return field(metadata={"name": name, "parse": parse, "default": default, "unit": unit})


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All settings of one gateway process."""

    listen: ListenAddress = _setting(
        "SANDGATE_LISTEN", _parse_listen, {"up": "127.0.0.1:8080", "router": "0.0.0.0:8080"}
    )
    """Where clients connect; port 0 takes any. Flag `--listen`."""
    metrics_listen: ListenAddress | None = _setting(
        "SANDGATE_METRICS_LISTEN", _parse_optional_listen, {"up": "", "router": "0.0.0.0:9090"}
    )
    """Where /metrics is served; empty turns it off. Flag `--metrics-listen`."""
    registry: str = _setting("SANDGATE_REGISTRY", _parse_registry, {"up": "local", "router": "dns"})
    """What knows the sandboxes: local or static:FILE. Flag `--registry`."""
    pools: Path | None = _setting("SANDGATE_POOLS", _parse_path, "")
    """A YAML file of pools; empty means one pool `python` in `default`. Flag `--pools`."""
    isolation: str = _setting("SANDGATE_ISOLATION", _one_of("bubblewrap", "none"), "bubblewrap")
    """How local sandboxes are isolated; none is for code that you trust. Flag `--isolation`."""
    auth: str | None = _setting(
        "SANDGATE_AUTH", lambda text: _parse_auth(text) if text else None, ""
    )
    """Who may use the relay: shared or none; empty decides by the other settings. Flag `--auth`."""
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
        faults: list[str] = []
        values: dict[str, Any] = {}
        flags = flags or {}
        for row in fields(cls):
            name, default = row.metadata["name"], row.metadata["default"]
            if not isinstance(default, str):
                default = default[command]
            text = flags.get(name, environ.get(name, default))
            try:
                values[row.name] = row.metadata["parse"](text)
            except ValueError as error:
                shown = "" if name == "ROUTER_AUTH_TOKEN" else f" {text!r}"
                faults.append(f"{name}{shown} {error}")
        if not faults:
            config = cls(**values)
            faults = config._conflicts(command)
        if faults:
            raise BadConfig(faults)
        return config

    @property
    def effective_auth(self) -> str:
        """`shared` or `none`, once the unset default is decided."""
        if self.auth is not None:
            return self.auth
        return "shared" if self.router_auth_token else "none"

    def _conflicts(self, command: Command) -> list[str]:
        faults = []
        if self.auth == "shared" and self.router_auth_token is None:
            faults.append("SANDGATE_AUTH shared needs ROUTER_AUTH_TOKEN")
        open_to_all = self.auth is None and not self.router_auth_token
        if open_to_all and not self.allow_unauthenticated:
            if command == "router":
                faults.append(
                    "no credential is set: give ROUTER_AUTH_TOKEN, or state"
                    " ALLOW_UNAUTHENTICATED_ROUTER=true"
                )
            elif not self.listen.is_loopback:
                faults.append(
                    f"SANDGATE_LISTEN {self.listen.host} is no loopback address: give"
                    " ROUTER_AUTH_TOKEN, or state ALLOW_UNAUTHENTICATED_ROUTER=true"
                )
        return faults
