"""What code inside an isolated sandbox can reach: each test is one way out that is closed."""

import asyncio
import os
import secrets
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
from support.local_sandbox import (
    Inside,
    claimed_sandbox,
    descendants,
    is_running,
    needs_bubblewrap,
    pool,
    request,
    running_registry,
)

from sandgate_router.errors import PoolExhausted
from sandgate_router.registry.local import isolated
from sandgate_router.registry.local.isolated import IsolatedStarter

pytestmark = needs_bubblewrap

SECRET = "a-secret-of-the-gateway"

# Runs inside. Takes every descriptor that can be had, by /proc and by pidfd_getfd, and tries
# to make a connection to the outside of it: as it is, after shutdown, after disconnecting.
STEAL = """
import ctypes, os, socket, sys
port, abstract = int(sys.argv[1]), b"\\0" + sys.argv[2].encode()
own = set(map(int, os.listdir("/proc/self/fd")))
libc = ctypes.CDLL(None, use_errno=True)
stolen, denied = {}, 0
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        continue
    for name in names:
        if int(pid) == os.getpid():
            stolen[pid, name] = int(name)
            continue
        try:
            held = os.pidfd_open(int(pid))
        except OSError:
            continue
        got = libc.syscall(438, held, int(name), 0)
        os.close(held)
        if got >= 0:
            stolen[pid, name] = got
        else:
            denied += 1
        try:
            os.open(f"/proc/{pid}/fd/{name}", os.O_RDWR | os.O_NONBLOCK)
        except OSError:
            pass
sockets = 0
for (pid, name), fd in stolen.items():
    try:
        taken = socket.socket(fileno=os.dup(fd))
    except OSError:
        continue
    sockets += 1
    taken.settimeout(1)
    for address in (("127.0.0.1", port), ("0.0.0.0", port), abstract):
        for prepare in ("none", "shutdown", "disconnect"):
            try:
                if prepare == "shutdown":
                    taken.shutdown(socket.SHUT_RDWR)
                if prepare == "disconnect":
                    libc.connect(taken.fileno(), b"\\0" * 16, 16)
            except OSError:
                pass
            try:
                taken.connect(address)
            except (OSError, TypeError):
                continue
            print("REACHED", pid, name, address, flush=True)
print("sockets", sockets, "stolen", len(stolen), "denied", denied)
"""


@pytest_asyncio.fixture
async def inside() -> AsyncIterator[Inside]:
    async with claimed_sandbox() as sandbox:
        yield sandbox


@pytest.fixture
def host_ports() -> Iterator[list[int]]:
    """Services of this machine on 0.0.0.0 and on 127.0.0.1; nobody may have come at the end."""
    with (
        socket.create_server(("0.0.0.0", 0)) as wide,
        socket.create_server(("127.0.0.1", 0)) as own,
    ):
        yield [wide.getsockname()[1], own.getsockname()[1]]
        for listener in (wide, own):
            listener.setblocking(False)
            with pytest.raises(BlockingIOError):
                listener.accept()


async def test_no_service_of_this_machine_is_reached_by_any_address(
    inside: Inside, host_ports: list[int]
) -> None:
    code = f"""
import socket
for port in {host_ports}:
    for host in ("127.0.0.1", "0.0.0.0", "::1", {socket.gethostbyname("localhost")!r}, "10.0.0.1"):
        try:
            socket.create_connection((host, port), timeout=1)
        except OSError as error:
            continue
        print("REACHED", host, port)
print(sorted(name for _, name in socket.if_nameindex()))
"""
    assert (await inside.python(code)).strip() == "['lo']"


async def test_no_service_of_this_machine_is_reached_through_the_relay(
    inside: Inside, host_ports: list[int]
) -> None:
    for port in host_ports:
        _, writer, answer = await inside.dial(port)
        assert answer == 1
        writer.close()


async def test_a_stolen_descriptor_reaches_nothing_outside(
    inside: Inside, host_ports: list[int]
) -> None:
    name = f"sandgate-test-{secrets.token_hex(4)}"
    with socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind(f"\0{name}")
        abstract.listen()
        abstract.setblocking(False)
        try:
            _, out, _ = await inside.execute("python3", "-c", STEAL, str(host_ports[0]), name)
        except httpx.RemoteProtocolError:  # it shut the very connection that it answers on
            out = ""
        assert "REACHED" not in out
        with pytest.raises(BlockingIOError):
            abstract.accept()


async def test_the_thief_of_that_test_does_get_hold_of_sockets(inside: Inside) -> None:
    looking = STEAL[: STEAL.index("sockets = 0")] + "print(len(stolen), denied)"
    stolen, denied = map(int, (await inside.execute("python3", "-c", looking, "1", "x"))[1].split())
    assert stolen >= 3
    assert stolen + denied > 8


async def test_a_server_on_a_port_inside_answers_through_the_relay(inside: Inside) -> None:
    code = """
import os, socket
server = socket.create_server(("127.0.0.1", 3000))
if os.fork() == 0:
    os.setsid()
    for name in (0, 1, 2):
        os.close(name)
    connection, _ = server.accept()
    connection.sendall(b"hello " + connection.recv(100))
    connection.close()
    os._exit(0)
"""
    # A plain command's children end with it, so the server is asked while its command runs.
    serve = asyncio.create_task(inside.python(code + "os.wait()"))
    async with asyncio.timeout(20):
        while True:
            reader, writer, answer = await inside.dial(3000)
            if answer == 0:
                break
            writer.close()
            await asyncio.sleep(0.02)
        writer.write(b"outside")
        assert await reader.read() == b"hello outside"
        writer.close()
        await serve


async def test_no_variable_of_the_gateway_is_visible_inside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GATEWAY_SECRET", SECRET)
    async with claimed_sandbox(env={"GREETING": "hello"}) as inside:
        seen = await inside.sh("cat /proc/[0-9]*/environ | tr '\\0' '\\n'; env")
        assert SECRET not in seen
        assert "GATEWAY_SECRET" not in seen
        assert "GREETING=hello" in seen
        first = await inside.sh("tr '\\0' '\\n' < /proc/1/environ")
        assert set(first.split()) <= {"PWD=/", "SHLVL=0", "SHLVL=1", "_=/usr/bin/bwrap"}
        # The arguments, which would tell where things are outside, are not readable either.
        assert "ro-bind" not in await inside.sh("tr '\\0' ' ' < /proc/1/cmdline")


async def test_files_of_this_machine_are_hidden(inside: Inside) -> None:
    hidden = [
        Path.home() / ".bashrc",
        Path(__file__),
        Path("/etc/shadow"),
        Path("/etc/hostname_of_none"),
        Path(tempfile.gettempdir()),
        Path("/var"),
        Path("/run"),
        Path("/sys"),
        Path("/proc/1/root/etc/shadow"),
        Path("/proc/1/cwd/etc/shadow"),
    ]
    marker = Path(tempfile.gettempdir(), f"sandgate-test-{secrets.token_hex(4)}")
    marker.write_text(SECRET)
    try:
        names = " ".join(str(path) for path in [*hidden, marker] if str(path) != "/tmp")
        out = await inside.sh(
            f"for name in {names}; do test -e $name && echo SEEN $name; done; true"
        )
    finally:
        marker.unlink()
    assert out == ""
    assert await inside.sh("ls -A /home/user /tmp/ /mnt /srv /media 2>/dev/null; true") == (
        "/home/user:\n\n/tmp/:\n"
    )
    assert "user:x:1000" in await inside.sh("cat /etc/passwd; id")


async def test_nothing_outside_the_workspace_can_be_written(inside: Inside) -> None:
    places = (
        "/ /usr /etc /opt/sandgate /opt/sandgate/runtime/sandgate_runtime /dev /proc/sys/kernel"
    )
    out = await inside.sh(
        f"for place in {places}; do touch $place/x && echo WROTE $place; done; true"
    )
    assert out == ""
    assert await inside.sh("touch /home/user/x /tmp/x && ls /home/user") == "x\n"


async def test_code_inside_has_no_capability_and_makes_no_user_namespace(inside: Inside) -> None:
    status = await inside.sh("grep -E 'CapEff|CapBnd|NoNewPrivs' /proc/self/status")
    assert status.split() == [
        *("CapEff:", "0" * 16),
        *("CapBnd:", "0" * 16),
        *("NoNewPrivs:", "1"),
    ]
    code, _, _ = await inside.execute("unshare", "--user", "true")
    assert code != 0


async def test_the_python_of_the_path_runs_in_the_workspace(inside: Inside) -> None:
    await inside.sh("echo 'print(6 * 7)' > /home/user/run.py")
    assert await inside.sh("python3 /home/user/run.py; python3 run.py; pwd") == (
        "42\n42\n/home/user\n"
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts sandboxes as other users")
@pytest.mark.usefixtures("inside")
async def test_started_by_root_the_sandbox_runs_as_a_user_of_its_own() -> None:
    holders = [pid for pid in descendants(os.getpid()) if "unshare" in _command(pid)]
    # Below each stands the first process of its namespace, which stays root's.
    firsts = [
        pid for pid in set[int]().union(*map(descendants, holders)) if _command(pid) == "/bin/sh"
    ]
    assert firsts
    below = set[int]().union(*map(descendants, firsts))
    owners = {os.stat(f"/proc/{pid}").st_uid for pid in below if is_running(pid)}
    assert owners
    assert all(61184 <= owner <= 65519 for owner in owners)


async def test_release_leaves_no_process_and_no_folder() -> None:
    before = descendants(os.getpid())
    async with claimed_sandbox(warm=0) as inside:
        await inside.sh("nohup setsid sleep 1000 > /dev/null 2>&1 & true")
        pids = descendants(os.getpid()) - before
        assert len(pids) >= 3
        folder = Path(inside.endpoint().path).parent
        assert folder.parent.stat().st_mode & 0o777 == 0o700
        await inside.registry.release(inside.claim.namespace, inside.claim.name)
        assert not any(map(is_running, pids))
        assert not folder.exists()
    assert not folder.parent.exists()


async def test_a_runtime_that_is_killed_inside_fails_its_claim(inside: Inside) -> None:
    endpoint = inside.endpoint()
    gone: list[object] = []
    inside.registry.subscribe(gone.append)
    with pytest.raises(Exception, match=r".*"):
        await inside.sh("kill -9 $PPID; kill -9 2; sleep 5")
    async with asyncio.timeout(10):
        while inside.claim.state != "failed":
            await asyncio.sleep(0.01)
    assert inside.claim.reason is not None
    assert "137" in inside.claim.reason
    assert gone == [endpoint]


async def test_a_sandbox_that_cannot_start_tells_the_last_it_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(isolated, "PYTHON", "/bin/ls")
    monkeypatch.setattr(IsolatedStarter, "_probe", _pass)
    async with running_registry(pool()) as registry:
        with pytest.raises(PoolExhausted, match=r"The last start failed: the runtime ended with"):
            await registry.claim(request(wait_seconds=1))
        assert "Try '/bin/ls --help'" in str(registry.pools()[0].last_error)
        assert registry._starters.folder is not None
        assert {path.name for path in registry._starters.folder.path.iterdir()} <= {"layout", "1"}


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[0]
    except OSError:
        return ""


async def _pass(_: IsolatedStarter) -> None:
    """Stand in for the probe of a start that is to fail later."""


@needs_bubblewrap
async def test_nothing_that_the_python_itself_has_installed_runs_inside() -> None:
    async with claimed_sandbox() as inside:
        look = "import site, sys; print(*sys.path, sep='\\n'); print(*site.PREFIXES, sep='\\n')"
        code, out, err = await inside.execute("/opt/sandgate/bin/python", "-I", "-c", look)
        assert code == 0, err
        places = out.splitlines()
        assert "/opt/sandgate/runtime" in places
        outside = [place for place in places if place.endswith("-packages")]
        assert all(place.startswith("/opt/sandgate/") for place in outside), outside
        assert places[-1] == "/opt/sandgate"
