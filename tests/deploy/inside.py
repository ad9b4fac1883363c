"""Runs inside the room: starts what an image starts, asks it, ends it, and tells what it saw.

    python inside.py JSON

The standard library alone, since it runs with what the image has. One JSON value on standard
output; whatever the server prints goes into it.
"""

import http.client
import json
import os
import signal
import subprocess
import sys
from typing import Any

WAIT_SECONDS = 30.0


def main(plan: dict[str, Any]) -> dict[str, Any]:
    """Do what the plan says, in order."""
    environ = plan["environ"]
    process = subprocess.Popen(
        plan["argv"], env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    first = process.stdout.readline()
    seen: dict[str, Any] = {"uid": os.getuid(), "first": first, "answers": []}
    if first:
        seen["healthy"] = ask_health(plan["health"], environ)
        seen["answers"] = [ask(request) for request in plan["requests"]]
        seen["writable"] = [path for path in plan["paths"] if can_write(path)]
        process.send_signal(signal.SIGTERM)
    _, seen["errors"] = process.communicate(timeout=WAIT_SECONDS)
    seen["exit"] = process.returncode
    seen["healthy_after"] = ask_health(plan["health"], environ)
    return seen


def ask_health(argv: list[str], environ: dict[str, str]) -> int:
    """Return the exit status of the HEALTHCHECK."""
    return subprocess.run(argv, env=environ, check=False, timeout=WAIT_SECONDS).returncode


def ask(request: dict[str, Any]) -> dict[str, Any]:
    """Return the status and the content of one answer."""
    connection = http.client.HTTPConnection("127.0.0.1", request["port"], timeout=WAIT_SECONDS)
    try:
        connection.request(
            request.get("method", "GET"),
            request["path"],
            request.get("body"),
            request.get("fields", {}),
        )
        answer = connection.getresponse()
        return {"status": answer.status, "content": answer.read().decode()}
    finally:
        connection.close()


def can_write(folder: str) -> bool:
    """Tell whether a file can be made in a folder."""
    path = os.path.join(folder, "written-by-a-test")
    try:
        with open(path, "x"):
            pass
    except OSError:
        return False
    os.unlink(path)
    return True


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(json.loads(sys.argv[1]))))
