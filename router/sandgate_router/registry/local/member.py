"""What the registry holds of a sandbox, and what it asks of those that start them."""

import asyncio
import base64
import secrets
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from sandgate_router.names import Label, parse_label
from sandgate_router.registry.base import Endpoint
from sandgate_router.registry.local.endpoints import SandboxEndpoints
from sandgate_router.registry.local.health import NotHealthy, ask_health
from sandgate_router.registry.local.pools import PoolSpec
from sandgate_router.registry.local.process import Process

START_SECONDS = 30.0
"""How long a start may take. It takes 0.2 s; on a machine that swaps, many times that."""

_RANDOM_BYTES = 10
"""80 bits: a generated name never comes back."""

_MAX_POOL_PART = 30


class StartFailed(Exception):
    """A sandbox did not become ready; the message says why."""


class Member(Protocol):
    """A sandbox that was ready."""

    @property
    def id(self) -> Label:
        """The name in X-Sandbox-ID."""

    @property
    def uid(self) -> str:
        """The generation."""

    @property
    def endpoints(self) -> SandboxEndpoints:
        """Where its ports are dialled."""

    @property
    def alive(self) -> bool:
        """Whether it is ready still: neither dead nor being ended."""

    async def end(self) -> None:
        """Kill all of it and remove its files; asked once."""


class Starter(Protocol):
    """What makes sandboxes of one isolation."""

    async def open(self) -> None:
        """Make ready to start; raise when nothing can ever be started here."""

    async def start(self, spec: PoolSpec, *, died: Callable[[Member, str], None]) -> Member:
        """Return a sandbox that has answered its health check.

        `died` is called, with the reason, when it ends before `end()` was asked for. Raises
        StartFailed; whether it raises or is cancelled, nothing is left.
        """

    def close(self) -> None:
        """Let go of what `open()` took, after every member has ended."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A sandbox's name and generation, new for each."""

    id: Label
    uid: str
    name: str
    """`namespace/id`."""

    @classmethod
    def generate(cls, spec: PoolSpec) -> "Identity":
        """Make up an identity for a new member of a pool."""
        prefix = spec.name[:_MAX_POOL_PART].rstrip("-")
        sandbox = parse_label(f"{prefix}-{random_label()}".encode())
        return cls(sandbox, str(uuid.uuid4()), f"{spec.namespace}/{sandbox}")


def random_label() -> str:
    """Return 16 random letters and digits, 80 bits."""
    return base64.b32encode(secrets.token_bytes(_RANDOM_BYTES)).decode().lower()


def runtime_environ(spec: PoolSpec, identity: Identity, *, home: str, path: str) -> dict[str, str]:
    """Return all the variables of a runtime: none comes from the gateway's own."""
    return {
        "PATH": path,
        "LANG": "C.UTF-8",
        **spec.env,
        "HOME": home,
        "SANDBOX_BASE_DIR": home,
        "SANDGATE_SANDBOX_NAME": identity.name,
        "SANDGATE_SANDBOX_UID": identity.uid,
        "SANDGATE_COMMAND_CPU_SECONDS": str(spec.cpu_seconds),
        "SANDGATE_COMMAND_MEMORY_BYTES": str(spec.memory_bytes),
        "SANDGATE_MAX_PROCESSES": str(spec.max_processes),
    }


async def wait_until_ready(process: Process, endpoint: Endpoint) -> None:
    """Return once the runtime has answered; raise StartFailed with what it said instead."""
    try:
        async with asyncio.timeout(START_SECONDS):
            await ask_health(endpoint)
    except TimeoutError as error:
        raise StartFailed(f"the runtime did not answer within {START_SECONDS:g} s") from error
    except NotHealthy as error:
        # Closed before it answered: most likely it has ended, and then it said why.
        if await process.wait(1.0):
            raise StartFailed(f"the runtime {process.describe_end()}") from error
        raise StartFailed(f"the runtime {error}") from error
    if process.exited.done():
        raise StartFailed(f"the runtime {process.describe_end()}")
