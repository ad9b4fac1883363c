"""The kinds of objects that we ask for, and their paths. Pure."""

from dataclasses import dataclass
from urllib.parse import quote


@dataclass(frozen=True, slots=True)
class Resource:
    """One kind."""

    group: str
    versions: tuple[str, ...]
    """Those that we understand, the one we like best first."""
    plural: str

    @property
    def qualified(self) -> str:
        """Its name in messages and rules: `sandboxes.agents.x-k8s.io`."""
        return f"{self.plural}.{self.group}"

    def path(self, version: str, namespace: str = "", name: str = "") -> str:
        """Return the path of one object, or of all; without a namespace, in all of them."""
        path = f"/apis/{self.group}/{version}"
        if namespace:
            path += f"/namespaces/{quote(namespace, safe='')}"
        path += f"/{self.plural}"
        return f"{path}/{quote(name, safe='')}" if name else path


_BETA_FIRST = ("v1beta1", "v1alpha1")

SANDBOXES = Resource("agents.x-k8s.io", _BETA_FIRST, "sandboxes")
SANDBOX_CLAIMS = Resource("extensions.agents.x-k8s.io", _BETA_FIRST, "sandboxclaims")
WARM_POOLS = Resource("extensions.agents.x-k8s.io", _BETA_FIRST, "sandboxwarmpools")
TOKEN_REVIEWS = Resource("authentication.k8s.io", ("v1",), "tokenreviews")
ACCESS_REVIEWS = Resource("authorization.k8s.io", ("v1",), "subjectaccessreviews")
