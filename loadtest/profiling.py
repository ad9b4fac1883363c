"""Where our own time goes, function by function, as py-spy sees it from outside.

It samples without stopping the gateway, so the figures of the run are not those to quote; the
shares are. The kernel's time counts to the function that called it.
"""

import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from loadtest.measure import BUSY_CONNECTIONS, CLIENTS, WARM_UP_SECONDS, Serve
from loadtest.processes import LOAD_CORE, running

SAMPLES_PER_SECOND = 500
SHOWN = 30


def profile(serve: Serve, *, sandboxes: int, seconds: float) -> str:
    """Return a table of functions in Markdown, from samples of a busy gateway.

    Raises:
        RuntimeError: where py-spy is missing, or may not look into another process.
    """
    program = Path(sys.executable).with_name("py-spy")
    found = str(program) if program.exists() else shutil.which("py-spy")
    if found is None:
        raise RuntimeError("--profile needs py-spy: install it with `pip install py-spy`")
    with serve(sandboxes) as (pid, port), tempfile.TemporaryDirectory() as folder:
        load = (
            *("--port", str(port), "--connections", str(BUSY_CONNECTIONS), "--seconds", "0"),
            *("--sandboxes", str(sandboxes)),
        )
        raw = Path(folder, "raw")
        command = [
            *(found, "record", "--nonblocking", "--pid", str(pid), "--format", "raw"),
            *("--rate", str(SAMPLES_PER_SECOND), "--duration", str(round(seconds))),
            *("--function", "--output", str(raw)),
        ]
        with running([sys.executable, "-m", f"{CLIENTS}.load", *load], core=LOAD_CORE) as busy:
            time.sleep(WARM_UP_SECONDS)
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            busy.communicate(timeout=60)
        if done.returncode or not raw.exists():
            raise RuntimeError(f"py-spy: {done.stderr.strip()}")
        return summarize(raw.read_text())


def summarize(stacks: str) -> str:
    """Turn lines of `outer;inner;innermost COUNT` into a table, the costliest first."""
    own: Counter[str] = Counter()
    within: Counter[str] = Counter()
    for line in stacks.splitlines():
        names, _, count = line.rpartition(" ")
        functions = names.split(";")
        own[functions[-1]] += int(count)
        for function in set(functions):
            within[function] += int(count)
    total = sum(own.values()) or 1
    rows = [
        f"| `{function}` | {100 * count / total:.1f} | {100 * within[function] / total:.1f} |"
        for function, count in own.most_common(SHOWN)
    ]
    return "\n".join(
        [
            f"# Where the gateway's time goes at {BUSY_CONNECTIONS} connections\n",
            f"{total} samples of py-spy; percent of all.\n",
            "| function | itself | with what it calls |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )
