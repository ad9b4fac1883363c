"""Reviews: whose token is this, and may this user do that? Nothing of them is stored."""

from typing import Any

from support.fake_kube.errors import bad_request
from support.fake_kube.faults import Call
from support.fake_kube.kinds import TOKEN_REVIEWS, Kind
from support.fake_kube.rbac import Rbac


def review(kind: Kind, body: Any, rbac: Rbac) -> dict[str, Any]:
    """Return a review with its answer."""
    if not isinstance(body, dict) or not isinstance(body.get("spec"), dict):
        raise bad_request("a review has a spec")
    answer = _token if kind is TOKEN_REVIEWS else _access
    return body | {"metadata": {}, "status": answer(body["spec"], rbac)}


def _token(spec: dict[str, Any], rbac: Rbac) -> dict[str, Any]:
    user = rbac.find(spec.get("token", ""))
    if user is None:
        return {"user": {}, "error": "[invalid bearer token]"}
    asked = spec.get("audiences") or ["https://kubernetes.default.svc"]
    shared = [audience for audience in asked if audience in user.audiences]
    if not shared:
        return {"user": {}, "error": "[invalid bearer token, token audiences are invalid]"}
    return {
        "authenticated": True,
        "audiences": shared,
        "user": {"username": user.name, "uid": user.uid, "groups": list(user.groups)},
    }


def _access(spec: dict[str, Any], rbac: Rbac) -> dict[str, Any]:
    asked = spec.get("resourceAttributes") or {}
    user = rbac.by_name(spec.get("user", ""))
    call = Call(
        asked.get("verb", ""),
        asked.get("group", ""),
        asked.get("resource", ""),
        asked.get("namespace", ""),
        asked.get("name", ""),
    )
    allowed = user is not None and user.may(call)
    return {"allowed": allowed} if allowed else {"allowed": False, "reason": "no rule allows it"}
