"""Large files stream through gateway and runtime: nothing on the way holds them."""

import hashlib
import random
import sys
from collections.abc import Iterator

import pytest
from support.system_gateway import SystemGateway, memory, routing_fields, sandgate_up, wait_until

from sandgate import Sandbox

MIB = 1024**2
SIZE = 300 * MIB
MAX_GROWTH = 32 * MIB

BOUNDARY = "0123456789abcdef"
HEAD = (
    f"--{BOUNDARY}\r\n"
    'content-disposition: form-data; name="file"; filename="large.bin"\r\n'
    "content-type: application/octet-stream\r\n\r\n"
).encode()
TAIL = f"\r\n--{BOUNDARY}--\r\n".encode()


@pytest.fixture(scope="module")
def gateway(isolation: str) -> Iterator[SystemGateway]:
    """Yield a gateway with one sandbox, so that the one runtime is the claimed one's."""
    with sandgate_up(isolation=isolation, pool={"warm": 1, "max": 1}) as gateway:
        yield gateway


class Growth:
    """How much more memory a process has had, at its most, than when this was made."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._start = memory(pid, "VmRSS")

    def bytes(self) -> int:
        return max(0, memory(self._pid, "VmHWM") - self._start)


def test_300_mb_go_up_and_down_unchanged_in_little_memory(
    gateway: SystemGateway, sandbox: Sandbox, isolation: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fields = routing_fields(sandbox)
    sandbox.files.write("small", b"x" * MIB)  # what is loaded once is no growth
    sandbox.files.read("small")
    (runtime,) = gateway.runtimes()
    growths = {"gateway": Growth(gateway.pid), "runtime": Growth(runtime)}
    sent, received = hashlib.sha256(), hashlib.sha256()
    with gateway.client() as client:
        answer = client.post(
            "/upload",
            headers={
                **fields,
                "Content-Type": f"multipart/form-data; boundary={BOUNDARY}",
                "Content-Length": str(len(HEAD) + SIZE + len(TAIL)),
            },
            content=_form(sent),
        )
        assert answer.status_code == 200, answer.text
        with client.stream("GET", "/download/large.bin", headers=fields) as download:
            assert download.status_code == 200
            assert download.headers["content-length"] == str(SIZE)
            for chunk in download.iter_raw():
                received.update(chunk)
    grown = {name: growth.bytes() for name, growth in growths.items()}
    shown = ", ".join(f"{name} {size / MIB:.1f} MiB" for name, size in grown.items())
    with capsys.disabled():
        sys.stdout.write(f"\n300 MiB up and down, isolation {isolation}: {shown}\n")
    assert received.hexdigest() == sent.hexdigest()
    assert all(size < MAX_GROWTH for size in grown.values()), shown
    inside = sandbox.commands.run(["sha256sum", "large.bin"], timeout=60).stdout
    assert inside.split()[0] == sent.hexdigest()
    assert [entry.name for entry in sandbox.files.list()] == ["large.bin", "small"]


def _form(digest: "hashlib._Hash") -> Iterator[bytes]:
    yield HEAD
    block = random.Random(1).randbytes(MIB)
    for number in range(SIZE // MIB):
        piece = number.to_bytes(8, "big") + block[8:]  # no two pieces alike
        digest.update(piece)
        yield piece
    yield TAIL


def test_a_client_that_leaves_its_upload_leaves_no_file(
    gateway: SystemGateway, sandbox: Sandbox
) -> None:
    class Leaving(Exception):
        pass

    def half() -> Iterator[bytes]:
        yield HEAD
        yield bytes(MIB)
        wait_until(sandbox.files.list)  # it is being written
        raise Leaving

    with gateway.client() as client, pytest.raises(Leaving):
        client.post(
            "/upload",
            headers={
                **routing_fields(sandbox),
                "Content-Type": f"multipart/form-data; boundary={BOUNDARY}",
                "Content-Length": str(len(HEAD) + 2 * MIB + len(TAIL)),
            },
            content=half(),
        )
    wait_until(lambda: not sandbox.files.list())
    assert not sandbox.files.exists("large.bin")
