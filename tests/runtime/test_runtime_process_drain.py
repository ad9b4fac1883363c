"""What a command left in its pipes is read though its reader is behind.

In a program of its own: whoever starts commands waits for all children of its process.
"""

import subprocess
import sys

PROGRAM = """
import asyncio
from sandgate_runtime.config import Config
from sandgate_runtime.processes.command import Command
from sandgate_runtime.processes.engine import Engine

async def main() -> None:
    engine = Engine(Config(base_directory="/"), environ={})
    engine.start()
    sizes = {"stdout": 0, "stderr": 0}

    def take(stream: str, content: bytes) -> None:
        sizes[stream] += len(content)
        process.pause_output()

    script = "head -c 60000 /dev/zero; head -c 50000 /dev/zero >&2; exit 3"
    process = engine.spawn(Command(argv=("sh", "-c", script), cwd="/", entry="execute"), take)
    process.pause_output()
    how = await asyncio.wait_for(process.watch(), 20)
    print(how.status, sizes["stdout"], sizes["stderr"], engine.running)
    await engine.close()

asyncio.run(main())
"""


def test_an_end_does_not_wait_for_a_reader_and_loses_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-c", PROGRAM],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "3 60000 50000 0\n"
