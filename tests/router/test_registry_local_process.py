import os
import signal
import socket

from sandgate_router.registry.local.process import MAX_TAIL_BYTES, Process


async def test_a_child_gets_no_descriptor_that_was_not_named() -> None:
    named, other = socket.socketpair()
    other.set_inheritable(True)
    process = Process.start(["/bin/ls", "/proc/self/fd"], environ={}, pass_fds=(named.fileno(),))
    assert await process.wait(10)
    assert str(other.fileno()) not in process.tail.split()
    # Its three streams, the named one, and the one that `ls` reads the folder by.
    assert len(process.tail.split()) == 5
    assert str(named.fileno()) in process.tail.split()
    named.close()
    other.close()


async def test_a_child_has_a_session_of_its_own_which_no_ctrl_c_of_ours_reaches() -> None:
    child = Process.start(["/bin/sleep", "1000"], environ={})
    assert os.getpgid(child.pid) == os.getsid(child.pid) == child.pid
    child.send_signal(signal.SIGKILL)
    assert await child.wait(10)


async def test_the_end_of_a_child_is_told_with_its_last_line_and_a_bounded_tail() -> None:
    script = "yes | head -c 1000000; echo; echo no such thing >&2; exit 3"
    process = Process.start(["/bin/sh", "-c", script], environ={})
    assert await process.wait(10)
    assert process.describe_end() == "ended with exit code 3: no such thing"
    assert len(process.tail) <= MAX_TAIL_BYTES
    hung = Process.start(["/bin/sleep", "1000"], environ={})
    assert not await hung.wait(0.01)
    assert hung.describe_end() == "still runs"
    hung.send_signal(signal.SIGKILL)
    assert await hung.wait(10)
    assert hung.describe_end() == "was ended by SIGKILL"
    hung.send_signal(signal.SIGKILL)
