"""The handle for asyncio: thin objects that pass what `_wire` decides to the transport."""

from sandgate._async_sandbox.commands import AsyncCommands
from sandgate._async_sandbox.files import AsyncFiles
from sandgate._async_sandbox.process import AsyncProcess
from sandgate._async_sandbox.sandbox import AsyncSandbox
from sandgate._async_sandbox.sandboxes import AsyncSandboxes

__all__ = ["AsyncCommands", "AsyncFiles", "AsyncProcess", "AsyncSandbox", "AsyncSandboxes"]
