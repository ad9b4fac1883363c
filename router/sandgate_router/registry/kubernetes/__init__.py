"""Sandboxes of a Kubernetes cluster, by the objects of kubernetes-sigs/agent-sandbox."""

from sandgate_router.registry.kubernetes.registry import KubernetesRegistry

__all__ = ["KubernetesRegistry"]
