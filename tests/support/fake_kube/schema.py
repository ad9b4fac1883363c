"""Structural schemas: what a custom resource may hold, what is dropped and what is filled in."""

from datetime import datetime
from typing import Any

from support.fake_kube.kinds import Schema

_TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "boolean": bool,
}
_OWN = ("apiVersion", "kind", "metadata")


def apply_schema(schema: Schema, whole: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return an object as it is stored, and every fault of it as `path: reason`."""
    faults: list[str] = []
    own = {member: whole[member] for member in _OWN if member in whole}
    rest = {member: value for member, value in whole.items() if member not in _OWN}
    stored = _apply(schema, rest, "", faults)
    return own | (stored if isinstance(stored, dict) else {}), faults


def _apply(schema: Schema, value: Any, path: str, faults: list[str]) -> Any:
    wanted = schema["type"]
    right = isinstance(value, _TYPES[wanted])
    if not right or (wanted == "integer" and isinstance(value, bool)):
        shown = "null" if value is None else type(value).__name__
        faults.append(f"{path}: Invalid value: {shown!r}: must be of type {wanted}")
        return value
    if wanted == "object":
        return _apply_object(schema, value, path, faults)
    if wanted == "array":
        rows = enumerate(value)
        return [_apply(schema["items"], row, f"{path}[{i}]", faults) for i, row in rows]
    if "enum" in schema and value not in schema["enum"]:
        allowed = ", ".join(f'"{choice}"' for choice in schema["enum"])
        faults.append(f'{path}: Unsupported value: "{value}": supported values: {allowed}')
    if value and schema.get("format") == "date-time" and not _is_time(value):
        faults.append(f'{path}: Invalid value: "{value}": must be of type date-time')
    if "minimum" in schema and value < schema["minimum"]:
        faults.append(f"{path}: Invalid value: {value}: must be at least {schema['minimum']}")
    return value


def _apply_object(
    schema: Schema, value: dict[str, Any], path: str, faults: list[str]
) -> dict[str, Any]:
    if schema.get("preserve"):
        return value
    if "values" in schema:
        return {
            key: _apply(schema["values"], row, f"{path}.{key}".strip("."), faults)
            for key, row in value.items()
        }
    members: dict[str, Schema] = schema["members"]
    faults += [
        f"{path}.{name}: Required value".lstrip(".")
        for name in schema.get("required", ())
        if value.get(name) is None
    ]
    stored = {
        name: _apply(members[name], row, f"{path}.{name}".strip("."), faults)
        for name, row in value.items()
        if name in members and row is not None
    }
    for name, member in members.items():
        if name not in stored and "default" in member:
            stored[name] = member["default"]
    return stored


def _is_time(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).tzinfo is not None and "T" in text
    except ValueError:
        return False
