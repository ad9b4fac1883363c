"""The kinds that the fake knows, and the schemas of the custom ones.

A schema is the structural kind that a CustomResourceDefinition has: members that it does not
name are dropped, required ones are asked for, types are checked and defaults filled in.
"""

from dataclasses import dataclass, field
from typing import Any

SANDBOX_GROUP = "agents.x-k8s.io"
EXTENSIONS_GROUP = "extensions.agents.x-k8s.io"

Schema = dict[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """One resource of the API."""

    group: str
    versions: tuple[str, ...]
    plural: str
    kind: str
    status: bool = False
    """Whether `/status` is a resource of its own."""
    namespaced: bool = True
    schema: Schema = field(default_factory=lambda: ANYTHING)

    @property
    def singular(self) -> str:
        return self.kind.lower()

    @property
    def qualified(self) -> str:
        """The name in messages: `sandboxes.agents.x-k8s.io`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def api_version(self, version: str) -> str:
        return f"{self.group}/{version}" if self.group else version


ANYTHING: Schema = {"type": "object", "preserve": True}
TEXT: Schema = {"type": "string"}
TIME: Schema = {"type": "string", "format": "date-time"}
TEXTS: Schema = {"type": "object", "values": TEXT}
COUNT: Schema = {"type": "integer", "minimum": 0}
NAMED: Schema = {"type": "object", "required": ["name"], "members": {"name": TEXT}}
METADATA: Schema = {"type": "object", "members": {"labels": TEXTS, "annotations": TEXTS}}
POD_TEMPLATE: Schema = {
    "type": "object",
    "required": ["spec"],
    "members": {"metadata": METADATA, "spec": ANYTHING},
}
CONDITION: Schema = {
    "type": "object",
    "required": ["type", "status", "reason", "lastTransitionTime"],
    "members": {
        "type": TEXT,
        "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
        "reason": TEXT,
        "message": TEXT,
        "observedGeneration": COUNT,
        "lastTransitionTime": TIME,
    },
}
CONDITIONS: Schema = {"type": "array", "items": CONDITION}


def _whole(spec: Schema, status: Schema) -> Schema:
    return {"type": "object", "required": ["spec"], "members": {"spec": spec, "status": status}}


SANDBOX_SPEC: Schema = {
    "type": "object",
    "required": ["podTemplate"],
    "members": {
        "podTemplate": POD_TEMPLATE,
        "volumeClaimTemplates": {"type": "array", "items": ANYTHING},
        "service": {"type": "boolean"},
        "operatingMode": {"type": "string", "enum": ["Running", "Suspended"], "default": "Running"},
        "shutdownTime": TIME,
        "shutdownPolicy": {"type": "string", "enum": ["Retain", "Delete"], "default": "Retain"},
    },
}
SANDBOX_STATUS: Schema = {
    "type": "object",
    "members": {
        "podIPs": {"type": "array", "items": TEXT},
        "nodeName": TEXT,
        "selector": TEXT,
        "service": TEXT,
        "serviceFQDN": TEXT,
        "conditions": CONDITIONS,
    },
}
CLAIM_SPEC: Schema = {
    "type": "object",
    "required": ["warmPoolRef"],
    "members": {
        "warmPoolRef": NAMED,
        "lifecycle": {
            "type": "object",
            "members": {
                "shutdownTime": TIME,
                "ttlSecondsAfterFinished": COUNT,
                "shutdownPolicy": {
                    "type": "string",
                    "enum": ["Retain", "Delete", "DeleteForeground"],
                    "default": "Retain",
                },
            },
        },
        "additionalPodMetadata": METADATA,
        "env": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["name"],
                "members": {"name": TEXT, "value": TEXT, "containerName": TEXT},
            },
        },
        "volumeClaimTemplates": {"type": "array", "items": ANYTHING},
    },
}
CLAIM_STATUS: Schema = {
    "type": "object",
    "members": {
        "sandbox": {
            "type": "object",
            "members": {"name": TEXT, "podIPs": {"type": "array", "items": TEXT}},
        },
        "conditions": CONDITIONS,
    },
}
POOL_SPEC: Schema = {
    "type": "object",
    "required": ["sandboxTemplateRef"],
    "members": {
        "replicas": COUNT | {"default": 1},
        "sandboxTemplateRef": NAMED,
        "updateStrategy": {
            "type": "object",
            "members": {"type": {"type": "string", "enum": ["OnReplenish", "Recreate"]}},
        },
    },
}
POOL_STATUS: Schema = {
    "type": "object",
    "members": {
        "replicas": COUNT,
        "readyReplicas": COUNT,
        "selector": TEXT,
        "observedGeneration": COUNT,
    },
}
TEMPLATE_SPEC: Schema = {
    "type": "object",
    "required": ["podTemplate"],
    "members": {
        "podTemplate": POD_TEMPLATE,
        "volumeClaimTemplates": {"type": "array", "items": ANYTHING},
        "service": {"type": "boolean"},
        "networkPolicyManagement": {"type": "string", "enum": ["Managed", "Unmanaged"]},
        "networkPolicy": ANYTHING,
        "envVarsInjectionPolicy": {
            "type": "string",
            "enum": ["Disallowed", "Allowed", "Overrides"],
        },
        "volumeClaimTemplatesPolicy": {
            "type": "string",
            "enum": ["Disallowed", "Allowed", "Overrides"],
        },
    },
}

SANDBOX_VERSIONS = ("v1beta1", "v1alpha1")

SANDBOXES = Kind(
    SANDBOX_GROUP,
    SANDBOX_VERSIONS,
    "sandboxes",
    "Sandbox",
    status=True,
    schema=_whole(SANDBOX_SPEC, SANDBOX_STATUS),
)
CLAIMS = Kind(
    EXTENSIONS_GROUP,
    SANDBOX_VERSIONS,
    "sandboxclaims",
    "SandboxClaim",
    status=True,
    schema=_whole(CLAIM_SPEC, CLAIM_STATUS),
)
POOLS = Kind(
    EXTENSIONS_GROUP,
    SANDBOX_VERSIONS,
    "sandboxwarmpools",
    "SandboxWarmPool",
    status=True,
    schema=_whole(POOL_SPEC, POOL_STATUS),
)
TEMPLATES = Kind(
    EXTENSIONS_GROUP,
    SANDBOX_VERSIONS,
    "sandboxtemplates",
    "SandboxTemplate",
    schema=_whole(TEMPLATE_SPEC, ANYTHING),
)
GATEWAYS = Kind("gateway.networking.k8s.io", ("v1",), "gateways", "Gateway", status=True)
PODS = Kind("", ("v1",), "pods", "Pod", status=True)
SERVICES = Kind("", ("v1",), "services", "Service", status=True)
NAMESPACES = Kind("", ("v1",), "namespaces", "Namespace", status=True, namespaced=False)
TOKEN_REVIEWS = Kind(
    "authentication.k8s.io", ("v1",), "tokenreviews", "TokenReview", namespaced=False
)
ACCESS_REVIEWS = Kind(
    "authorization.k8s.io", ("v1",), "subjectaccessreviews", "SubjectAccessReview", namespaced=False
)

STORED = (SANDBOXES, CLAIMS, POOLS, TEMPLATES, GATEWAYS, PODS, SERVICES, NAMESPACES)
REVIEWS = (TOKEN_REVIEWS, ACCESS_REVIEWS)
EVERY = STORED + REVIEWS
