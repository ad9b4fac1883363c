"""Who may do what, and what was done: the rules that a deployment needs can be compared."""

from dataclasses import dataclass

from support.fake_kube.errors import ApiError
from support.fake_kube.faults import Call

ANY = "*"


@dataclass(frozen=True, slots=True)
class Rule:
    """Verbs on a resource, in one namespace or in all of them."""

    verbs: tuple[str, ...]
    group: str
    resource: str
    namespace: str = ANY

    def allows(self, call: Call) -> bool:
        return (
            (call.verb in self.verbs or ANY in self.verbs)
            and self.group in {ANY, call.group}
            and self.resource in {ANY, call.resource}
            and self.namespace in {ANY, call.namespace}
        )


@dataclass(frozen=True, slots=True)
class User:
    """Whom a bearer token stands for."""

    name: str
    groups: tuple[str, ...] = ("system:authenticated",)
    rules: tuple[Rule, ...] = (Rule((ANY,), ANY, ANY),)
    audiences: tuple[str, ...] = ("https://kubernetes.default.svc",)
    uid: str = "7d3f"

    def may(self, call: Call) -> bool:
        return any(rule.allows(call) for rule in self.rules)


class Rbac:
    """The users, and every verb that was used."""

    def __init__(self) -> None:
        self.users: dict[str, User] = {}
        """By bearer token."""
        self.anonymous: User | None = User("system:anonymous")
        """Who comes without a token; None has them refused."""
        self.used: set[tuple[str, str, str]] = set()
        """Verb, group and resource of what was allowed."""

    def admit(self, authorization: str, call: Call) -> User:
        """Return who calls; raise 401 or 403."""
        user = self.find(authorization.removeprefix("Bearer ")) if authorization else self.anonymous
        if user is None:
            raise ApiError(401, "Unauthorized", "Unauthorized")
        if not user.may(call):
            raise _forbidden(user, call)
        self.used.add((call.verb, call.group, call.resource))
        return user

    def find(self, token: str) -> User | None:
        return self.users.get(token)

    def by_name(self, name: str) -> User | None:
        return next((user for user in self.users.values() if user.name == name), None)


def _forbidden(user: User, call: Call) -> ApiError:
    where = f'in the namespace "{call.namespace}"' if call.namespace else "at the cluster scope"
    subject = f"{call.resource}.{call.group}" if call.group else call.resource
    named = f' "{call.name}"' if call.name else ""
    return ApiError(
        403,
        "Forbidden",
        f'{subject}{named} is forbidden: User "{user.name}" cannot {call.verb} resource'
        f' "{call.resource}" in API group "{call.group}" {where}',
        details={"name": call.name, "group": call.group, "kind": call.resource},
    )
