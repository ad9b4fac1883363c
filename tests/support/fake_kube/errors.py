"""What the API server refuses with: a `Status` object and its HTTP status."""

from typing import Any

from support.fake_kube.kinds import Kind


class ApiError(Exception):
    """A refusal."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        *,
        details: dict[str, Any] | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.retry_after = retry_after
        self.status: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message,
            "reason": reason,
            "code": code,
        }
        if details:
            self.status["details"] = details


def not_found(kind: Kind, name: str) -> ApiError:
    return ApiError(
        404, "NotFound", f'{kind.qualified} "{name}" not found', details=_details(kind, name)
    )


def already_exists(kind: Kind, name: str) -> ApiError:
    return ApiError(
        409,
        "AlreadyExists",
        f'{kind.qualified} "{name}" already exists',
        details=_details(kind, name),
    )


def conflict(kind: Kind, name: str, why: str = "") -> ApiError:
    why = why or (
        "the object has been modified; please apply your changes to the latest version and try"
        " again"
    )
    return ApiError(
        409,
        "Conflict",
        f'Operation cannot be fulfilled on {kind.qualified} "{name}": {why}',
        details=_details(kind, name),
    )


def invalid(kind: Kind, name: str, faults: list[str]) -> ApiError:
    message = f'{kind.kind}.{kind.group} "{name}" is invalid: {", ".join(faults)}'
    return ApiError(422, "Invalid", message, details=_details(kind, name))


def expired(asked: int, oldest: int) -> ApiError:
    return ApiError(410, "Expired", f"too old resource version: {asked} ({oldest})")


def bad_request(message: str) -> ApiError:
    return ApiError(400, "BadRequest", message)


def _details(kind: Kind, name: str) -> dict[str, Any]:
    return {"name": name, "group": kind.group, "kind": kind.plural}
