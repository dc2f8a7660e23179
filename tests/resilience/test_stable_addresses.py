"""Addresses are part of what a program holds: a restore gives the same ones or refuses (E8)."""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path

from helpers import ptx
from helpers.program import Program, ok
from helpers.server_process import ServerProcess, assert_eventually

from outlast.shim import driver as cuda

NODES = 1000
#: What makes a server process take its device's addresses itself while a file is there.
OCCUPIER = """
import ctypes, mmap, os, sys
if os.path.exists({flag!r}) and "outlast.server.worker" in " ".join(sys.orig_argv):
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
    libc.mmap({address}, 4096, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x100000, -1, 0)
"""


def make_list(program: Program) -> tuple[int, int, int]:
    """Link nodes in one allocation each, in a random order; return first, array and sum."""
    chance = random.Random(8)
    nodes = [program.alloc(chance.choice((16, 48, 5000))) for _ in range(NODES)]
    for hole in chance.sample(range(NODES), 50):  # the layout has a history
        program.free(nodes[hole])
        nodes[hole] = program.alloc(16)
    values = [chance.randrange(1 << 32) for _ in nodes]
    for node, following, value in zip(nodes, [*nodes[1:], 0], values, strict=True):
        program.write(node, following.to_bytes(8, "little") + value.to_bytes(8, "little"))
    array = program.alloc(8 * NODES)
    program.write(array, b"".join(node.to_bytes(8, "little") for node in nodes))
    return nodes[0], array, sum(values)


def total(program: Program, first: int) -> int:
    """Add the list up on the device; the module's variable adds 5."""
    kernel = program.kernel(program.load(ptx.LIST), "total")
    out = program.alloc(8)
    program.launch(kernel, (("pointer", first), ("pointer", out)))
    result = program.number(out) - 5
    program.free(out)
    return result


def test_list_on_the_device_is_walked_to_the_same_sum_after_a_restore(
    server: ServerProcess, program: Program
) -> None:
    first, array, expected = make_list(program)
    assert total(program, first) == expected
    program.checkpoint(server.state)
    extra = program.alloc(100)
    program.write(extra, b"e" * 100)

    server.kill()
    server.start()
    assert total(program, first) == expected
    pointers = program.read(array, 8 * NODES)
    for index in (0, 1, 500, 999):
        node = int.from_bytes(pointers[8 * index : 8 * index + 8], "little")
        base, size = ok(cuda.cuMemGetAddressRange(node + 15))
        assert base == node
        assert size in (16, 48, 5000)
        assert program.read(node + 8, 8) == program.read(node, 16)[8:]  # an interior pointer
    assert program.read(extra, 100) == b"e" * 100
    # New memory overlaps none that the client holds.
    fresh = program.alloc(1 << 20)
    program.write(fresh, b"\xff" * (1 << 20))
    assert total(program, first) == expected


def test_address_that_cannot_be_had_refuses_the_restore_until_it_can(tmp_path: Path) -> None:
    flag = tmp_path / "occupied"
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    occupier = OCCUPIER.format(flag=str(flag), address=0x1000_0000_0000)
    (hooks / "sitecustomize.py").write_text(occupier)
    server = ServerProcess(tmp_path / "state", ["--checkpoint-interval", "0"])
    server.environment["PYTHONPATH"] = os.pathsep.join(
        [str(hooks), os.environ.get("PYTHONPATH", "")]
    )
    with server:
        program = Program(server.endpoint, "train", tmp_path / "client")
        try:
            kernel, target = program.new_tape()
            program.append(kernel, target, [1, 2])
            program.checkpoint(server.state)
            flag.touch()
            server.kill()
            server.start()
            read: list[int] = []

            def wait() -> None:
                program.use_primary()
                read.append(program.number(target))

            thread = threading.Thread(target=wait)
            thread.start()
            refusal = "cannot reserve"
            assert_eventually(lambda: server.log_text().count(refusal) >= 3, "it is refused")
            assert thread.is_alive(), "the program was told something"
            assert read == []
            flag.unlink()
            thread.join(20)
            assert read == [12]
            program.append(kernel, target, [3])
            assert program.number(target) == 123
        finally:
            program.close()
