"""The blocking handle: thin objects that pass what `_wire` decides to the transport."""

from sandgate._sandbox.commands import Commands
from sandgate._sandbox.files import Files
from sandgate._sandbox.process import Process
from sandgate._sandbox.sandbox import Sandbox
from sandgate._sandbox.sandboxes import Sandboxes

__all__ = ["Commands", "Files", "Process", "Sandbox", "Sandboxes"]
