"""How a capability is spelled: a token has exactly one spelling, and all else is none.

Pure: text in, checked values out, and back. A MAC is only looked at for its spelling here.

    token   = "sg1." kid "." payload "." mac
    payload = base64url of JSON, its members `aud ns cl sb uid ports scp nbf exp`

The payload is read by one expression for just that spelling and by no JSON parser, since
parsers disagree on repeated members, on numbers and on white space.
"""

import itertools
import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

from sandgate_router import base64url
from sandgate_router.names import Label, Port, parse_label, parse_port

Scope = Literal["http", "ws"]

SCOPES: tuple[Scope, ...] = ("http", "ws")
"""Every scope, in the order in which a token lists them."""

MAX_TOKEN_BYTES = 8192
"""Longest token; a usual one has 300 bytes. It has to fit into a head beside other fields."""

_AUDIENCE = re.compile(r"[A-Za-z0-9._:/-]{1,128}")
_UID = re.compile(r"[!#-\[\]-~]{1,253}")
"""Printable ASCII but `"` and `\\`, which JSON would escape."""

_TOKEN = re.compile(rb"(sg1\.([A-Za-z0-9_-]{1,32})\.([A-Za-z0-9_-]++))\.([A-Za-z0-9_-]{43})")
_LABEL = r"([a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?)"
_SECONDS = r"(0|[1-9][0-9]{0,10})"
_PAYLOAD = re.compile(
    (
        rf'\{{"aud":"({_AUDIENCE.pattern})","ns":"{_LABEL}","cl":"{_LABEL}","sb":"{_LABEL}",'
        rf'"uid":(?:null|"({_UID.pattern})"),'
        r'"ports":(?:null|\[((?:[1-9][0-9]{0,4}(?:,[1-9][0-9]{0,4})*+)?)\]),'
        r'"scp":\[((?:"http"(?:,"ws")?|"ws")?)\],'
        rf'"nbf":{_SECONDS},"exp":{_SECONDS}\}}'
    ).encode("ascii")
)


class Capability(NamedTuple):
    """What a token says."""

    audience: str
    namespace: Label
    claim: Label
    sandbox: Label
    uid: str | None
    """The only generation of the sandbox; None is any."""
    ports: tuple[Port, ...] | None
    """Ascending; None is any port."""
    scopes: tuple[Scope, ...]
    not_before: int
    """Unix seconds, as is `expires_at`, from which on the token is void."""
    expires_at: int


def parse_token(token: bytes) -> tuple[str, Capability]:
    """Return the kid and what the token says, its MAC unchecked.

    Raises:
        ValueError: it is not spelled as `Capabilities.sign` spells.
    """
    match = _TOKEN.fullmatch(token) if len(token) <= MAX_TOKEN_BYTES else None
    if match is None:
        raise ValueError("it is not sg1.<kid>.<payload>.<mac>")
    base64url.decode(match[4])
    try:
        payload = base64url.decode(match[3])
    except ValueError as error:
        raise ValueError(f"its payload {error}") from error
    return match[2].decode("ascii"), parse_payload(payload)


def parse_payload(payload: bytes) -> Capability:
    """Return what a payload says; raise ValueError unless it is spelled canonically."""
    match = _PAYLOAD.fullmatch(payload)
    if match is None:
        raise ValueError("its payload is not spelled as a capability is")
    audience, namespace, claim, sandbox, uid, ports, scopes, not_before, expires_at = match.groups()
    return Capability(
        audience=audience.decode("ascii"),
        namespace=parse_label(namespace),
        claim=parse_label(claim),
        sandbox=parse_label(sandbox),
        uid=None if uid is None else uid.decode("ascii"),
        ports=None if ports is None else _parse_ports(ports),
        scopes=tuple(scope for scope in SCOPES if b'"%b"' % scope.encode() in scopes),
        not_before=int(not_before),
        expires_at=int(expires_at),
    )


def build_payload(capability: Capability) -> bytes:
    """Return the one spelling of `capability`; raise ValueError where it has none."""
    uid, ports = capability.uid, capability.ports
    payload = (
        f'{{"aud":"{capability.audience}","ns":"{capability.namespace}",'
        f'"cl":"{capability.claim}","sb":"{capability.sandbox}",'
        f'"uid":{"null" if uid is None else _quoted(uid)},'
        f'"ports":{"null" if ports is None else _bracketed([str(port) for port in ports])},'
        f'"scp":{_bracketed([_quoted(scope) for scope in capability.scopes])},'
        f'"nbf":{capability.not_before},"exp":{capability.expires_at}}}'
    ).encode()
    # Read back: a name that holds a quote must not say more than was meant.
    try:
        said = parse_payload(payload)
    except ValueError:
        said = None
    if said != capability:
        raise ValueError(f"no token can say {capability}")
    return payload


def _parse_ports(text: bytes) -> tuple[Port, ...]:
    ports = tuple(parse_port(part) for part in text.split(b",")) if text else ()
    if any(left >= right for left, right in itertools.pairwise(ports)):
        raise ValueError("its ports are not ascending")
    return ports


def _quoted(text: str) -> str:
    return f'"{text}"'


def _bracketed(parts: Sequence[str]) -> str:
    return f"[{','.join(parts)}]"
