"""The handle on a sandbox: claim one, run commands, keep files, release it.

    with Sandboxes(Gateway("http://127.0.0.1:8080")) as sandboxes:
        with sandboxes.claim("python") as sandbox:
            sandbox.files.write("run.py", "print('hello')")
            print(sandbox.commands.run("python3 run.py", timeout=60).stdout)

`AsyncSandboxes` is the same for asyncio. Errors are in `sandgate.errors`; the common ones are
here too.
"""

from typing import TYPE_CHECKING

from sandgate._sandbox import Process, Sandbox, Sandboxes
from sandgate.connections import Connection, Direct, Gateway, InCluster, Tunnel
from sandgate.errors import (
    ClaimExists,
    ClaimNotFound,
    CommandTimeout,
    GatewayUnreachable,
    OutcomeUnknown,
    PoolExhausted,
    PoolNotFound,
    ProcessEnded,
    ProcessNotFound,
    SandboxFailed,
    SandboxNotFound,
    SandboxNotReady,
    SandgateError,
    Unauthenticated,
    UpstreamTimeout,
)
from sandgate.types import (
    Claim,
    CommandEvent,
    CommandResult,
    Exit,
    FileChange,
    FileInfo,
    GatewayEvent,
    Match,
    Output,
    PoolStatus,
    ProcessInfo,
    Started,
    TerminalSize,
    Written,
)

if TYPE_CHECKING:
    from sandgate._async_sandbox import AsyncProcess, AsyncSandbox, AsyncSandboxes

__all__ = [
    "AsyncProcess",
    "AsyncSandbox",
    "AsyncSandboxes",
    "Claim",
    "ClaimExists",
    "ClaimNotFound",
    "CommandEvent",
    "CommandResult",
    "CommandTimeout",
    "Connection",
    "Direct",
    "Exit",
    "FileChange",
    "FileInfo",
    "Gateway",
    "GatewayEvent",
    "GatewayUnreachable",
    "InCluster",
    "Match",
    "OutcomeUnknown",
    "Output",
    "PoolExhausted",
    "PoolNotFound",
    "PoolStatus",
    "Process",
    "ProcessEnded",
    "ProcessInfo",
    "ProcessNotFound",
    "Sandbox",
    "SandboxFailed",
    "SandboxNotFound",
    "SandboxNotReady",
    "Sandboxes",
    "SandgateError",
    "Started",
    "TerminalSize",
    "Tunnel",
    "Unauthenticated",
    "UpstreamTimeout",
    "Written",
]


def __getattr__(name: str) -> object:
    # Imported when they are asked for: asyncio is a third of what importing this package costs.
    if name not in {"AsyncProcess", "AsyncSandbox", "AsyncSandboxes"}:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from sandgate import _async_sandbox

    return getattr(_async_sandbox, name)
