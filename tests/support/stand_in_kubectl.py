"""A `kubectl` that really forwards: a program for PATH that `port-forward` runs as kubectl would.

It listens on 127.0.0.1, prints kubectl's line, and passes bytes to the port that KUBECTL_TARGET
names. It writes its process id and its words to a file, for a test to kill and to compare.
"""

import json
import os
import sys
from pathlib import Path

PROGRAM = """\
#!{python} -IS
import json, os, socket, sys, threading

if os.path.exists({folder!r} + "/refuse"):
    print("error: unable to forward port because pod is not running", file=sys.stderr)
    sys.exit(1)
listener = socket.create_server(("127.0.0.1", 0))
with open({folder!r} + "/calls", "a") as calls:
    calls.write(json.dumps({{"pid": os.getpid(), "argv": sys.argv[1:]}}) + "\\n")
print(f"Forwarding from 127.0.0.1:{{listener.getsockname()[1]}} -> 8080", flush=True)
print("Forwarding from [::1]:1 -> 8080", flush=True)

def shut(*sockets):
    for one in sockets:
        try:
            one.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

def copy(source, target):
    try:
        while data := source.recv(65536):
            target.sendall(data)
    except OSError:
        pass
    shut(source, target)

while True:
    client, _ = listener.accept()
    server = socket.create_connection(("127.0.0.1", {port}))
    for pair in ((client, server), (server, client)):
        threading.Thread(target=copy, args=pair, daemon=True).start()
"""


class StandInKubectl:
    """The program in a folder of its own."""

    def __init__(self, folder: Path, *, port: int) -> None:
        self.folder = folder
        self.program = folder / "kubectl"
        self.program.write_text(
            PROGRAM.format(python=sys.executable, folder=str(folder), port=port)
        )
        self.program.chmod(0o755)

    def calls(self) -> list[dict[str, object]]:
        """Return what it was started with each time, oldest first."""
        file = self.folder / "calls"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    @property
    def pids(self) -> list[int]:
        return [int(str(call["pid"])) for call in self.calls()]

    def refuse(self, *, refuses: bool) -> None:
        """Have it fail at once, as where no pod runs, or no more."""
        file = self.folder / "refuse"
        if refuses:
            file.touch()
        else:
            file.unlink()

    @property
    def path(self) -> str:
        """A search path on which it comes first."""
        return f"{self.folder}:{os.environ['PATH']}"
