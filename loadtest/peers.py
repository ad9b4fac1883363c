"""The proxies that are measured, each told to do the same job and tuned as its users would.

The job: route by X-Sandbox-ID to one of the stub sandboxes, keep connections alive on both
sides, take the routing fields off. None of the others checks the fields, a credential or a
sandbox's generation, which is to their advantage.
"""

import contextlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from loadtest import configs, credentials
from loadtest.processes import PROXY_CORE, read_line, running, unused_port, wait_for_port

HERE = Path(__file__).parent

BUILD_SECONDS = 300.0

SANDGATE = "Sandgate"
COMPILED = "Sandgate, compiled"

COMPILED_PYTHON = HERE.parent / ".venv-compiled" / "bin" / "python"
"""Has the wheel with compiled modules; `make bench` makes it."""

STARLETTE = "Starlette + httpx"
SPLICE = "uvloop splice, no parsing"


@dataclass(frozen=True, slots=True)
class Peer:
    """One proxy."""

    name: str
    program: str
    """What must be on the machine; `python` always is."""
    arguments: Callable[[str, Path, int], list[str]]
    """The command, from the program's path, a folder of its own and the port to listen on."""
    files: Callable[[int, int], Mapping[str, str]]
    """Its files by name, from the port and the number of sandboxes."""
    version: tuple[str, ...] = ()
    """Arguments with which the program tells its version."""
    build: Callable[[str, Path], list[str]] | None = None
    """What makes it, once in a run, in a folder that is then the `folder` of `arguments`."""
    routes: bool = True
    """Whether it reads requests at all."""


PEERS = (
    Peer(
        "nginx, static upstreams",
        "nginx",
        lambda program, folder, _: [program, "-p", str(folder), "-c", "nginx.conf"],
        lambda port, count: {"nginx.conf": configs.nginx(port, count, keep_alive=True)},
        version=("-v",),
    ),
    Peer(
        "nginx, variable upstream",
        "nginx",
        lambda program, folder, _: [program, "-p", str(folder), "-c", "nginx.conf"],
        lambda port, count: {"nginx.conf": configs.nginx(port, count, keep_alive=False)},
    ),
    Peer(
        "HAProxy, tuned",
        "haproxy",
        lambda program, folder, _: [program, "-q", "-db", "-f", str(folder / "haproxy.cfg")],
        lambda port, count: {"haproxy.cfg": configs.haproxy(port, count)},
        version=("-v",),
    ),
    Peer(
        "Envoy",
        "envoy",
        lambda program, folder, _: [
            *(program, "--concurrency", "1", "--log-level", "off"),
            *("--base-id", str(unused_port()), "-c", str(folder / "envoy.yaml")),
        ],
        lambda port, count: {"envoy.yaml": configs.envoy(port, count)},
        version=("--version",),
    ),
    Peer(
        "Caddy",
        "caddy",
        lambda program, folder, _: [
            *(program, "run", "--config", str(folder / "Caddyfile"), "--adapter", "caddyfile"),
        ],
        lambda port, count: {"Caddyfile": configs.caddy(port, count)},
        version=("version",),
    ),
    Peer(
        "Go ReverseProxy",
        "go",
        lambda _, folder, port: [str(folder / "proxy"), str(port)],
        lambda _port, _count: {
            "main.go": (HERE / "peer_programs" / "reverse_proxy.go").read_text(),
            "go.mod": "module proxy\n\ngo 1.21\n",
        },
        version=("version",),
        build=lambda program, folder: [program, "build", "-C", str(folder), "-o", "proxy", "."],
    ),
    Peer(
        "aiohttp",
        "python",
        lambda _, __, port: [
            sys.executable,
            "-m",
            "loadtest.peer_programs.aiohttp_proxy",
            str(port),
        ],
        lambda _port, _count: {},
    ),
    Peer(
        STARLETTE,
        "python",
        lambda _, __, port: [sys.executable, "-m", "loadtest.peer_programs.httpx_proxy", str(port)],
        lambda _port, _count: {},
    ),
    Peer(
        SPLICE,
        "python",
        lambda _, __, port: [sys.executable, "-m", "loadtest.peer_programs.splice", str(port)],
        lambda _port, _count: {},
        routes=False,
    ),
)
"""In the order of the table; the last is the floor of our own event loop."""


@contextlib.contextmanager
def serving(peer: Peer, workshop: Path, sandboxes: int) -> Iterator[tuple[int, int]]:
    """Run a peer; yield its process id and port. `workshop` keeps what outlasts it."""
    program = find_program(peer)
    if program is None:
        raise RuntimeError(f"{peer.program} is not on this machine")
    port = unused_port()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, text in peer.files(port, sandboxes).items():
            (folder / file).write_text(text)
        if peer.build is not None:
            folder = _build_once(peer, program, folder, workshop)
        command = peer.arguments(program, folder, port)
        settings = {"GOMAXPROCS": "1", "XDG_DATA_HOME": name, "HOME": name}
        log = workshop / "log"
        with running(command, core=PROXY_CORE, settings=settings, log=log) as process:
            wait_for_port(process, port)
            yield process.pid, port


def _build_once(peer: Peer, program: str, source: Path, workshop: Path) -> Path:
    built = workshop / peer.program
    if not built.exists():
        shutil.copytree(source, built)
        settings = {"GOCACHE": str(workshop / "cache"), "GOPATH": str(workshop / "go")}
        command = peer.build(program, built) if peer.build is not None else []
        with running(command, core=PROXY_CORE, settings=settings) as build:
            if build.wait(timeout=BUILD_SECONDS):
                raise RuntimeError(f"{peer.name} cannot be built")
    return built


@contextlib.contextmanager
def serving_sandgate(
    workshop: Path, sandboxes: int, *, python: str = sys.executable
) -> Iterator[tuple[int, int]]:
    """Run our gateway over static addresses; yield its process id and port."""
    with tempfile.TemporaryDirectory() as name:
        file = Path(name, "sandboxes.yaml")
        file.write_text(configs.sandgate(sandboxes))
        settings = {
            "SANDGATE_LISTEN": "127.0.0.1:0",
            "SANDGATE_METRICS_LISTEN": "127.0.0.1:0",
            "SANDGATE_REGISTRY": f"static:{file}",
            "SANDGATE_DRAIN_DELAY": "0",
            **credentials.build_settings(Path(name)),
        }
        command = [python, "-m", "sandgate_router", "up"]
        log = workshop / "log"
        with running(command, core=PROXY_CORE, settings=settings, log=log) as process:
            line = read_line(process, "listening on ")
            yield process.pid, int(line.rsplit(":", 1)[1])


def find_program(peer: Peer) -> str | None:
    """Return the path of what a peer needs; programs of this environment come first."""
    if peer.program == "python":
        return sys.executable
    beside = Path(sys.executable).with_name(peer.program)
    if beside.exists():
        return str(beside)
    return shutil.which(peer.program, path="/usr/local/bin:/usr/bin:/usr/sbin")


def versions() -> dict[str, str]:
    """Return what is measured, in whose version, as each program tells it."""
    found = {
        name: metadata.version(name)
        for name in ("sandgate", "uvloop", "aiohttp", "httpx", "starlette")
    }
    for peer in PEERS:
        program = find_program(peer)
        if program is not None and peer.version:
            told = subprocess.run(
                [program, *peer.version], capture_output=True, text=True, check=False
            )
            number = re.search(r"\d+\.\d+(\.\d+)?", told.stdout + told.stderr)
            if number is not None:
                found[peer.program] = number[0]
    return found
