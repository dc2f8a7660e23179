"""Forked and spawned children: the parent's session stays the parent's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.client_program import ClientProgram
from helpers.server_process import ServerProcess

#: A parent that forks in the middle of its work; CHILD is what the child does.
PARENT = """
begin()
address = check(cuda.cuMemAlloc(4))
check(cuda.cuMemsetD32(address, 0, 1))
bulk = np.arange(1 << 19, dtype=np.int32)
copy = check(cuda.cuMemAlloc(bulk.nbytes))
check(cuda.cuMemcpyHtoD(copy, bulk.ctypes.data, bulk.nbytes))
{fork}
check(cuda.cuMemcpyHtoD(copy, bulk.ctypes.data, bulk.nbytes))
assert (read(copy, bulk.size) == bulk).all()
for number in range(1, 101):
    check(cuda.cuMemsetD32(address, number, 1))
    assert read(address)[0] == number
say("parent fine", cuda.statistics()["reconnects"])
sys.exit(7)
"""
FORK = """
pid = os.fork()
if not pid:
    {child}
    os._exit(99)
code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
say("child", code)
"""
CHILDREN = {
    "os._exit": ("os._exit(3)", 3),
    "sys.exit": ("sys.exit(4)", 4),
    "exception": ("raise SystemExit(5)", 5),
    "garbage collection": ("import gc; del address; gc.collect(); sys.exit(6)", 6),
    "a CUDA call": (
        "started = time.monotonic(); codes = [int(cuda.cuMemAlloc(4)[0]), "
        "int(cuda.cuInit(0)[0]), int(cuda.cuMemsetD32(address, 9, 1)[0])]; "
        "os._exit(0 if codes == [3, 3, 3] and time.monotonic() - started < 1 else 98)",
        0,
    ),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("forks") / "state") as server:
        yield server


@pytest.mark.parametrize("end", CHILDREN)
def test_a_forked_child_leaves_its_parent_alone(
    server: ServerProcess, tmp_path: Path, end: str
) -> None:
    """C6: whatever the child does, the session neither ends nor is taken."""
    child, code = CHILDREN[end]
    program = PARENT.format(fork=FORK.format(child=child))
    name = end.replace(" ", "-")
    with ClientProgram(program, server.endpoint, tmp_path, name) as parent:
        assert parent.expect() == f"child {code}"
        assert parent.expect() == "parent fine 0"
        assert parent.end() == 7
        assert parent.errors == ""
    mine = [line for line in server.log_text().splitlines() if f"session={name}" in line]
    assert len([line for line in mine if "action=attached" in line]) == 1
    assert len([line for line in mine if "action=detached" in line]) == 1  # the parent's own end


def test_forked_multiprocessing_workers_leave_the_parent_alone(
    server: ServerProcess, tmp_path: Path
) -> None:
    """C6: what a DataLoader does."""
    fork = """
import multiprocessing
with multiprocessing.get_context("fork").Pool(2) as pool:
    assert pool.map(abs, [-1, -2, -3]) == [1, 2, 3]
"""
    with ClientProgram(PARENT.format(fork=fork), server.endpoint, tmp_path, "pool") as parent:
        assert parent.expect() == "parent fine 0"
        assert parent.end() == 7
        assert parent.errors == ""


def test_a_forked_child_that_never_ends_leaves_the_parent_alone(
    server: ServerProcess, tmp_path: Path
) -> None:
    """C6: it holds copies of the parent's sockets, and the parent's end is still noticed."""
    fork = """
pid = os.fork()
if not pid:
    os.close(0), os.close(1), os.close(2)
    time.sleep(60)
    os._exit(0)
say("child", pid)
"""
    with ClientProgram(PARENT.format(fork=fork), server.endpoint, tmp_path, "lasting") as parent:
        assert parent.expect().startswith("child")
        assert parent.expect() == "parent fine 0"
        assert parent.end() == 7
        with ClientProgram(
            "begin(); say('adopted')", server.endpoint, tmp_path, "lasting"
        ) as successor:
            assert successor.expect() == "adopted"
            assert successor.end() == 0


def test_a_spawned_child_gets_a_session_of_its_own(server: ServerProcess, tmp_path: Path) -> None:
    """C6: although it inherits the name of its parent's session through the environment."""
    fork = """
import subprocess
code = (
    "from outlast.shim import driver as cuda; from outlast.shim.process import process; "
    "assert int(cuda.cuInit(0)[0]) == 0; print(process.client.link.session_id)"
)
child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20)
say("child's session", child.stdout.strip(), child.stderr.strip())
"""
    with ClientProgram(PARENT.format(fork=fork), server.endpoint, tmp_path, "parental") as parent:
        words = parent.expect().split()
        assert words[:2] == ["child's", "session"]
        assert len(words) == 3, words
        assert words[2].startswith("anonymous-")
        assert parent.expect() == "parent fine 0"
        assert parent.end() == 7
