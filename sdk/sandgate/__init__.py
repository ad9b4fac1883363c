"""The handle on a sandbox: claim one, run commands, keep files, release it.

    with Sandboxes(Gateway("http://127.0.0.1:8080")) as sandboxes:
        with sandboxes.claim("python") as sandbox:
            sandbox.files.write("run.py", "print('hello')")
            print(sandbox.commands.run("python3 run.py", timeout=60).stdout)

Errors are in `sandgate.errors`; the common ones are here too.
"""

from sandgate._sandbox import Sandbox, Sandboxes
from sandgate.connections import Gateway
from sandgate.errors import (
    ClaimExists,
    ClaimNotFound,
    CommandTimeout,
    GatewayUnreachable,
    OutcomeUnknown,
    PoolExhausted,
    PoolNotFound,
    SandboxFailed,
    SandboxNotFound,
    SandboxNotReady,
    SandgateError,
)
from sandgate.types import (
    Claim,
    CommandEvent,
    CommandResult,
    Exit,
    FileInfo,
    Output,
    PoolStatus,
    Started,
)

__all__ = [
    "Claim",
    "ClaimExists",
    "ClaimNotFound",
    "CommandEvent",
    "CommandResult",
    "CommandTimeout",
    "Exit",
    "FileInfo",
    "Gateway",
    "GatewayUnreachable",
    "OutcomeUnknown",
    "Output",
    "PoolExhausted",
    "PoolNotFound",
    "PoolStatus",
    "Sandbox",
    "SandboxFailed",
    "SandboxNotFound",
    "SandboxNotReady",
    "Sandboxes",
    "SandgateError",
    "Started",
]
