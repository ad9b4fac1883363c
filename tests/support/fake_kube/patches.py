"""Merge patches (RFC 7396) and the JSON patches (RFC 6902) that clients send."""

import copy
from typing import Any

from support.fake_kube.errors import ApiError, bad_request


def apply_patch(kind: str, item: dict[str, Any], patch: Any) -> dict[str, Any]:
    """Return the object that a patch with this content type makes of `item`."""
    if kind == "application/merge-patch+json":
        if not isinstance(patch, dict):
            raise bad_request("a merge patch is an object")
        merged = _merge(copy.deepcopy(item), patch)
        assert isinstance(merged, dict)
        return merged
    if kind == "application/json-patch+json":
        if not isinstance(patch, list):
            raise bad_request("a JSON patch is a list")
        patched = copy.deepcopy(item)
        for step in patch:
            _step(patched, step)
        return patched
    raise ApiError(
        415,
        "UnsupportedMediaType",
        "the body of the request was in an unknown format - accepted media types include:"
        " application/json-patch+json, application/merge-patch+json",
    )


def _merge(target: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    merged = target if isinstance(target, dict) else {}
    for member, value in patch.items():
        if value is None:
            merged.pop(member, None)
        else:
            merged[member] = _merge(merged.get(member), value)
    return merged


def _step(item: Any, step: dict[str, Any]) -> None:
    *parents, last = (
        part.replace("~1", "/").replace("~0", "~") for part in step["path"].split("/")[1:]
    )
    for part in parents:
        item = item[int(part)] if isinstance(item, list) else item[part]
    if step["op"] == "test":
        if item.get(last) != step["value"]:
            raise ApiError(422, "Invalid", "the test of a JSON patch failed")
    elif step["op"] == "remove":
        del item[int(last) if isinstance(item, list) else last]
    elif isinstance(item, list) and last == "-":
        item.append(step["value"])
    else:
        item[int(last) if isinstance(item, list) else last] = step["value"]
