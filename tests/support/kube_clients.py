"""Foreign clients of the Kubernetes API, behind the few calls that the fake is tried with."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import kr8s
import kr8s.asyncio
import kr8s.asyncio.objects
import kubernetes
from kubernetes.client.exceptions import ApiException
from support.fake_kube.kinds import Kind

Item = dict[str, Any]
OFFICIAL: Any = kubernetes
"""Half of it is typed, half is not."""


class ClientRefused(Exception):
    """What the API refused with, as the client tells it."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{code} {reason}")
        self.code = code
        self.reason = reason


class ForeignClient(Protocol):
    """A client; blocking."""

    def close(self) -> None: ...
    def create(self, kind: Kind, item: Item) -> Item: ...
    def get(self, kind: Kind, name: str) -> Item: ...
    def items(self, kind: Kind, *, labels: str = "", fields: str = "") -> list[Item]: ...
    def replace(self, kind: Kind, name: str, item: Item, *, status: bool = False) -> Item: ...
    def merge(self, kind: Kind, name: str, patch: Item, *, status: bool = False) -> Item: ...
    def delete(self, kind: Kind, name: str) -> None: ...
    def watch(
        self, kind: Kind, *, version: str = "", fields: str = "", seconds: int = 1
    ) -> Iterator[tuple[str, Item]]: ...


class OfficialClient:
    """The Python client of the Kubernetes project."""

    def __init__(self, kubeconfig: Path) -> None:
        self._api = OFFICIAL.config.new_client_from_config(str(kubeconfig))
        self._custom = OFFICIAL.client.CustomObjectsApi(self._api)

    def close(self) -> None:
        self._api.close()

    def create(self, kind: Kind, item: Item) -> Item:
        return self._call("create_namespaced_custom_object", kind, body=item)

    def get(self, kind: Kind, name: str) -> Item:
        return self._call("get_namespaced_custom_object", kind, name=name)

    def items(self, kind: Kind, *, labels: str = "", fields: str = "") -> list[Item]:
        found = self._call(
            "list_namespaced_custom_object", kind, label_selector=labels, field_selector=fields
        )
        items: list[Item] = found["items"]
        return items

    def replace(self, kind: Kind, name: str, item: Item, *, status: bool = False) -> Item:
        call = f"replace_namespaced_custom_object{'_status' if status else ''}"
        return self._call(call, kind, name=name, body=item)

    def merge(self, kind: Kind, name: str, patch: Item, *, status: bool = False) -> Item:
        call = f"patch_namespaced_custom_object{'_status' if status else ''}"
        return self._call(call, kind, name=name, body=patch)

    def delete(self, kind: Kind, name: str) -> None:
        self._call("delete_namespaced_custom_object", kind, name=name)

    def watch(
        self, kind: Kind, *, version: str = "", fields: str = "", seconds: int = 1
    ) -> Iterator[tuple[str, Item]]:
        try:
            for event in OFFICIAL.watch.Watch().stream(
                self._custom.list_namespaced_custom_object,
                kind.group,
                kind.versions[0],
                "default",
                kind.plural,
                resource_version=version,
                field_selector=fields,
                allow_watch_bookmarks=True,
                timeout_seconds=seconds,
            ):
                yield event["type"], event["object"]
                if event["type"] == "BOOKMARK":
                    return  # it would begin anew by itself
        except ApiException as error:
            raise ClientRefused(error.status, str(error.reason)) from error

    def _call(self, call: str, kind: Kind, **members: Any) -> Item:
        try:
            found: Item = getattr(self._custom, call)(
                kind.group, kind.versions[0], "default", plural=kind.plural, **members
            )
        except ApiException as error:
            reason = json.loads(error.body or "{}")["reason"]
            raise ClientRefused(error.status, reason) from error
        return found


class Kr8sClient:
    """kr8s, in a loop of its own."""

    def __init__(self, kubeconfig: Path) -> None:
        self._runner = asyncio.Runner()
        self._api: Any = self._runner.run(kr8s.asyncio.api(kubeconfig=str(kubeconfig)))

    def close(self) -> None:
        if self._api._session is not None:
            self._runner.run(self._api._session.aclose())
        self._runner.close()

    def create(self, kind: Kind, item: Item) -> Item:
        made = self._object(kind, item)
        self._run(made.create)
        raw: Item = made.raw.to_dict()
        return raw

    def get(self, kind: Kind, name: str) -> Item:
        found = self._run(self._class(kind).get, name, namespace="default", api=self._api)
        raw: Item = found.raw.to_dict()
        return raw

    def items(self, kind: Kind, *, labels: str = "", fields: str = "") -> list[Item]:
        async def collect() -> list[Item]:
            return [
                item.raw.to_dict()
                async for item in self._class(kind).list(
                    namespace="default",
                    api=self._api,
                    label_selector=labels or None,
                    field_selector=fields or None,
                )
            ]

        items: list[Item] = self._run(collect)
        return items

    def replace(self, kind: Kind, name: str, item: Item, *, status: bool = False) -> Item:
        url = f"{kind.plural}/{name}{'/status' if status else ''}"

        async def send() -> Item:
            async with self._call(kind, "PUT", url, content=json.dumps(item)) as response:
                replaced: Item = response.json()
                return replaced

        found: Item = self._run(send)
        return found

    def merge(self, kind: Kind, name: str, patch: Item, *, status: bool = False) -> Item:
        found = self._object(kind, self.get(kind, name))
        self._run(found.patch, patch, subresource="status" if status else None)
        raw: Item = found.raw.to_dict()
        return raw

    def delete(self, kind: Kind, name: str) -> None:
        self._run(self._object(kind, self.get(kind, name)).delete)

    def watch(
        self, kind: Kind, *, version: str = "", fields: str = "", seconds: int = 1
    ) -> Iterator[tuple[str, Item]]:
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(seconds),
            "resourceVersion": version,
            "fieldSelector": fields,
        }

        async def collect() -> list[tuple[str, Item]]:
            told = []
            async with self._call(kind, "GET", kind.plural, params=query, stream=True) as response:
                async for line in response.aiter_lines():
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        raise ClientRefused(event["object"]["code"], event["object"]["reason"])
                    told.append((event["type"], event["object"]))
            return told

        yield from self._run(collect)

    def _call(self, kind: Kind, method: str, url: str, **members: Any) -> Any:
        version = f"{kind.group}/{kind.versions[0]}"
        return self._api.call_api(method, version=version, namespace="default", url=url, **members)

    def _object(self, kind: Kind, item: Item) -> Any:
        whole: Item = {"apiVersion": kind.api_version(kind.versions[0]), "kind": kind.kind}
        whole |= item
        whole["metadata"] = whole["metadata"] | {"namespace": "default"}
        return self._class(kind)(whole, api=self._api)

    def _class(self, kind: Kind) -> Any:
        version = kind.api_version(kind.versions[0])
        return kr8s.asyncio.objects.new_class(
            kind.kind, version=version, namespaced=True, plural=kind.plural, asyncio=True
        )

    def _run(self, function: Any, *args: Any, **members: Any) -> Any:
        async def call() -> Any:
            return await function(*args, **members)

        try:
            return self._runner.run(call())
        except kr8s.NotFoundError as error:
            raise ClientRefused(404, "NotFound") from error
        except kr8s.ServerError as error:
            status = error.response.json() if error.response is not None else {}
            raise ClientRefused(status.get("code", 0), status.get("reason", "")) from error
