"""How a request names its sandbox: the routing fields, and the tokens that open the way."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Route:
    """One port of one sandbox."""

    sandbox: str
    namespace: str
    port: int
    token: str | None = field(default=None, repr=False)
    """The claim's capability; it travels in a field of its own, since Authorization is the
    application's."""
    router_token: str | None = field(default=None, repr=False)
    """The one token of all sandboxes of a gateway, which takes it from Authorization."""
    origin: str | None = None
    """Where the sandbox itself is dialled; None goes through the gateway."""
    uid: str | None = None
    """The generation that a sandbox which is dialled itself must be."""

    def fields(self, *, timeout: float | None = None) -> list[tuple[str, str]]:
        """Return the fields; `timeout` bounds, in seconds, the gateway's wait for each byte."""
        if self.origin is not None:
            return self._expectation()
        fields = [
            ("x-sandbox-id", self.sandbox),
            ("x-sandbox-namespace", self.namespace),
            ("x-sandbox-port", str(self.port)),
        ]
        if self.token is not None:
            fields.append(("x-sandbox-token", self.token))
        if self.router_token is not None:
            fields.append(("authorization", f"Bearer {self.router_token}"))
        if timeout is not None:
            fields.append(("x-sandbox-timeout", f"{timeout:g}"))
        return fields

    def _expectation(self) -> list[tuple[str, str]]:
        # What a gateway would add: the runtime answers 421 where it is another sandbox.
        if self.uid is None:
            return []
        name = f"{self.namespace}/{self.sandbox}"
        return [("x-sandbox-expect-uid", self.uid), ("x-sandbox-expect-name", name)]
