"""Where every sandbox of the cluster is, from memory: what the relay asks on its hot path.

Kept by the watch on Sandboxes, and by single answers of the API after a miss; both may come
late, twice or out of order. What holds nevertheless:

* An object in an older version never takes the place of a newer one; a UID that has ended
  never comes back, whatever still arrives of it.
* The end of an old object never removes the new one of the same name.
* An address belongs to one sandbox: who gained it last. The other loses its endpoints first.
* Sandboxes that no claim holds are never found by name.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from sandgate_router.addresses import IpAddress, Verdict, parse_address
from sandgate_router.names import DEFAULT_PORT, Port
from sandgate_router.registry.base import Endpoint, Launch
from sandgate_router.registry.kubernetes.objects import (
    BadObject,
    Key,
    SandboxObject,
    Standing,
    parse_sandbox,
)

MAX_PORTS = 64
"""Ports of one sandbox that are remembered: whoever walks all of them costs no more."""

MAX_ENDED = 20_000
"""UIDs that are remembered as ended. Answers that were on their way arrive within seconds."""

log = logging.getLogger("sandgate.registry")


class Policy(Protocol):
    """Which addresses may be dialled."""

    def judge(self, address: IpAddress) -> Verdict:
        """Tell whether `address` may be dialled."""


@dataclass(slots=True, eq=False)
class Entry:
    """A sandbox as it is known."""

    key: Key
    uid: str
    version: int
    standing: Standing
    reason: str
    address: str
    """What is dialled; empty while there is none."""
    told: str
    """The address that the cluster tells; another's, where that gained it later."""
    since: int
    """The version in which that was first told."""
    claim: str
    """The UID of the claim that holds it; empty for none."""
    claim_name: str
    launch: Launch
    endpoints: dict[Port, Endpoint] = field(default_factory=dict)

    def __repr__(self) -> str:
        where = self.address or "nowhere"
        return f"<Entry {self.key[0]}/{self.key[1]} {self.standing} at {where}>"


class SandboxTable:
    """The sandboxes of one cluster."""

    def __init__(self, policy: Policy) -> None:
        """Know none; dial only what `policy` allows."""
        self._policy = policy
        self._entries: dict[Key, Entry] = {}
        self._by_address: dict[str, Entry] = {}
        self._by_claim: dict[str, Entry] = {}
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._gone: list[Callable[[Endpoint], None]] = []
        self._changed: list[Callable[[Entry], None]] = []

    def __len__(self) -> int:
        return len(self._entries)

    def on_gone(self, listener: Callable[[Endpoint], None]) -> None:
        """Have `listener` called for each endpoint that has left the table."""
        self._gone.append(listener)

    def on_change(self, listener: Callable[[Entry], None]) -> None:
        """Have `listener` called for each sandbox that has become known or changed."""
        self._changed.append(listener)

    def get(self, key: Key) -> Entry | None:
        """Return what is known of a sandbox."""
        return self._entries.get(key)

    def of_claim(self, uid: str) -> Entry | None:
        """Return the sandbox that a claim holds."""
        return self._by_claim.get(uid)

    def endpoint(self, key: Key, port: Port) -> Endpoint | None:
        """Return an endpoint that was opened and is live."""
        entry = self._entries.get(key)
        if entry is None or entry.standing != "ready":
            return None
        return entry.endpoints.get(port)

    def open(self, entry: Entry, port: Port) -> Endpoint:
        """Return the endpoint of a port of a sandbox that is ready."""
        if (found := entry.endpoints.get(port)) is not None:
            return found
        if len(entry.endpoints) >= MAX_PORTS:
            # Whoever walks the ports must not end what uses the usual one.
            oldest = next(other for other in entry.endpoints if other != DEFAULT_PORT)
            self._tell_gone([entry.endpoints.pop(oldest)])
        namespace, name = entry.key
        endpoint = Endpoint(
            uid=entry.uid, name=f"{namespace}/{name}", host=entry.address, port=port
        )
        entry.endpoints[port] = endpoint
        return endpoint

    def apply(self, kind: str, item: msgspec.Raw) -> None:
        """Take an event of the watch."""
        try:
            found = parse_sandbox(item)
        except BadObject as error:
            log.warning("kube.bad_object", extra={"reason": str(error)})
            return
        if kind == "DELETED":
            self.forget(found.key, found.uid)
        else:
            self.learn(found)

    def replace(self, items: list[bytes], *, version: str, namespace: str) -> None:
        """Take a whole list: what is not in it, and not newer than it, has ended."""
        listed = set[str]()
        for item in items:
            try:
                found = parse_sandbox(item)
            except BadObject as error:
                log.warning("kube.bad_object", extra={"reason": str(error)})
                continue
            listed.add(found.uid)
            self.learn(found)
        newest = int(version) if version.isdecimal() else 0
        for entry in list(self._entries.values()):
            if entry.uid in listed or entry.version > newest > 0:
                continue
            if namespace in {"", entry.key[0]}:
                self.forget(entry.key, entry.uid)

    def learn(self, found: SandboxObject) -> None:
        """Take an object as it stood in its version."""
        if found.uid in self._ended:
            return
        entry = self._entries.get(found.key)
        if entry is not None and found.version < entry.version:
            return
        if entry is not None and entry.uid != found.uid:
            self.forget(entry.key, entry.uid)
            entry = None
        if entry is None:
            entry = self._entries[found.key] = _build_entry(found)
        self._settle(entry, found)
        for listener in self._changed:
            listener(entry)

    def forget(self, key: Key, uid: str) -> None:
        """Take the end of an object: nothing of this UID is believed any more."""
        self._ended[uid] = None
        if len(self._ended) > MAX_ENDED:
            self._ended.popitem(last=False)
        entry = self._entries.get(key)
        if entry is None or entry.uid != uid:
            return
        del self._entries[key]
        if self._by_claim.get(entry.claim) is entry:
            del self._by_claim[entry.claim]
        self._close(entry)

    def _settle(self, entry: Entry, found: SandboxObject) -> None:
        """Bring an entry to what is known now; what it loses is said before it is dialled anew."""
        standing, reason, address = found.standing, found.reason, ""
        if standing in {"ready", "starting"} and found.addresses:
            address = self._choose(found)
            if not address:
                standing, reason = "prohibited", "AddressNotAllowed"
        if address != entry.address or standing not in {"ready", "starting"}:
            self._close(entry)
        entry.version, entry.standing, entry.reason = found.version, standing, reason
        if entry.claim != found.claim:
            self._by_claim.pop(entry.claim, None)
        entry.claim, entry.claim_name, entry.launch = found.claim, found.claim_name, found.launch
        if entry.claim:
            self._by_claim[entry.claim] = entry
        if address != entry.told:
            entry.told, entry.since = address, found.version
        if address and not entry.address:
            self._occupy(entry, address)

    def _occupy(self, entry: Entry, address: str) -> None:
        other = self._by_address.get(address)
        if other is not None and other.since > entry.since:
            # Late news of an address that has gone to another since.
            entry.standing, entry.reason = "starting", "AddressTaken"
            return
        if other is not None:
            self._close(other)
            if other.standing == "ready":
                other.standing, other.reason = "starting", "AddressTaken"
        entry.address = address
        self._by_address[address] = entry

    def _close(self, entry: Entry) -> None:
        """Take a sandbox's address and endpoints away."""
        if self._by_address.get(entry.address) is entry:
            del self._by_address[entry.address]
        entry.address = ""
        endpoints, entry.endpoints = list(entry.endpoints.values()), {}
        if entry.standing == "ready":
            entry.standing = "starting"  # nobody may open it anew while listeners hear of it
        self._tell_gone(endpoints)

    def _choose(self, found: SandboxObject) -> str:
        """Return the address to dial, the first of IPv4 or else the first; empty for none.

        One that may not be dialled spoils all: their order is not for us to trust.
        """
        addresses = []
        for text in found.addresses:
            try:
                address = parse_address(text)
            except ValueError:
                return ""
            if self._policy.judge(address) != "allowed":
                return ""
            addresses.append(address)
        return str(next((one for one in addresses if one.version == 4), addresses[0]))

    def _tell_gone(self, endpoints: Iterable[Endpoint]) -> None:
        for endpoint in endpoints:
            for gone in self._gone:
                gone(endpoint)


def _build_entry(found: SandboxObject) -> Entry:
    return Entry(
        key=found.key,
        uid=found.uid,
        version=found.version,
        standing="starting",
        reason="",
        address="",
        told="",
        since=found.version,
        claim="",
        claim_name="",
        launch=found.launch,
    )
