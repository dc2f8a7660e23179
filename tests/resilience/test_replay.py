"""Replay imposes what the program saw: outcomes, addresses and bytes that have landed."""

from __future__ import annotations

import threading
from pathlib import Path

from helpers.program import Program, ok, running
from helpers.server_process import ServerProcess, assert_eventually

from outlast.shim import driver as cuda

OUT_OF_MEMORY = cuda.CUresult.CUDA_ERROR_OUT_OF_MEMORY
MIB = 1 << 20


def test_bytes_that_have_landed_are_not_written_again(
    server: ServerProcess, program: Program
) -> None:
    kernel, target = program.new_tape()
    landed = [bytearray(8) for _ in range(40)]
    for number, buffer in enumerate(landed):
        program.append(kernel, target, [number % 10])
        ok(cuda.cuMemcpyDtoH(buffer, target, 8))
    expected = program.number(target)
    for buffer in landed:
        buffer[:] = b"reused!!"
    server.kill()
    server.start()
    assert program.number(target) == expected
    assert program.link.statistics()["replayed_calls"] >= 80
    assert all(buffer == b"reused!!" for buffer in landed)


def test_copies_that_were_waiting_land_once_after_a_kill(
    server: ServerProcess, program: Program
) -> None:
    target = program.alloc(8 * MIB)
    program.write(target, b"z" * (8 * MIB))
    got: list[bytes] = []

    def read() -> None:
        program.use_primary()
        got.append(program.read(target, 8 * MIB))

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    server.kill_workers()
    for thread in threads:
        thread.join(30)
    assert len(got) == 4
    assert all(data == b"z" * (8 * MIB) for data in got)


def test_allocation_that_failed_stays_failed_and_addresses_stay_equal(tmp_path: Path) -> None:
    small, large = str(64 * MIB), str(1024 * MIB)
    server = ServerProcess(tmp_path / "state", ["--checkpoint-interval", "0"])
    server.environment["LUPINE_EMULATED_MEMORY"] = small
    with server, running(server.endpoint, "train", tmp_path / "client") as program:
        kernel, target = program.new_tape()
        first = program.alloc(20 * MIB)
        assert cuda.cuMemAlloc(50 * MIB) == (OUT_OF_MEMORY, None)
        second = program.alloc(30 * MIB)
        program.free(first)
        third = program.alloc(10 * MIB)
        program.append(kernel, target, [5])
        program.sync()

        # A device on which it would succeed now: the program has gone on without.
        server.environment["LUPINE_EMULATED_MEMORY"] = large
        server.kill()
        server.start()
        program.append(kernel, target, [6])
        assert program.number(target) == 56
        for address, size in ((second, 30 * MIB), (third, 10 * MIB)):
            assert ok(cuda.cuMemGetAddressRange(address)) == (address, size)
            program.write(address + size - 4, b"last")
            assert program.read(address + size - 4, 4) == b"last"
        free, total = ok(cuda.cuMemGetInfo())
        assert total == 1024 * MIB
        assert total - free < 41 * MIB, "the failed allocation was made by the replay"


def test_success_that_cannot_be_had_again_waits_for_a_server_that_has_it(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "state", ["--checkpoint-interval", "0"])
    server.environment["LUPINE_EMULATED_MEMORY"] = str(64 * MIB)
    with server, running(server.endpoint, "train", tmp_path / "client") as program:
        kernel, target = program.new_tape()
        large = program.alloc(40 * MIB)
        program.append(kernel, target, [1])
        program.sync()
        server.environment["LUPINE_EMULATED_MEMORY"] = str(16 * MIB)
        server.kill()
        server.start()
        read: list[int] = []

        def wait() -> None:
            program.use_primary()
            read.append(program.number(target))

        thread = threading.Thread(target=wait)
        thread.start()
        assert_eventually(lambda: "cannot be had again" in server.log_text(), "it is refused")
        assert thread.is_alive()
        server.environment["LUPINE_EMULATED_MEMORY"] = str(64 * MIB)
        server.kill()
        server.start()
        thread.join(30)
        assert read == [1]
        assert ok(cuda.cuMemGetAddressRange(large)) == (large, 40 * MIB)
        assert server.log_text().count("cannot be had again") < 20, "it was tried without a pause"
