"""The blocking handle: thin objects that pass each call from `_wire` to the transport."""

from sandgate._sandbox.sandbox import Sandbox
from sandgate._sandbox.sandboxes import Sandboxes

__all__ = ["Sandbox", "Sandboxes"]
