"""What a session makes of faults that rules let happen on the emulated device."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from helpers.program import Program, ok, running, tape_of
from helpers.server_process import ServerProcess, assert_eventually

from outlast.errors import SessionFailed
from outlast.shim import driver as cuda

SIZE = 64 << 10
DATA = bytes(range(256)) * (SIZE // 256)

Begin = Callable[..., tuple[ServerProcess, Program]]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    """Start a server with these rules and a program in it."""
    with ExitStack() as stack:

        def start(*rules: dict[str, Any], **settings: Any) -> tuple[ServerProcess, Program]:
            arguments = ["--device", "emulated", "--checkpoint-interval", "0"]
            environment = {"OUTLAST_EMULATED_FAULTS": json.dumps(rules)}
            server = ServerProcess(tmp_path / "state", arguments, environment)
            stack.enter_context(server)
            client = tmp_path / "client"
            program = running(server.endpoint, "train", client, **settings)
            return server, stack.enter_context(program)

        yield start


def fired(server: ServerProcess) -> int:
    return server.log_text().count("fires: ")


@pytest.mark.parametrize("middle", [False, True], ids=["before", "in the middle"])
def test_a_worker_killed_at_a_copy_is_killed_once_and_loses_no_byte(
    begin: Begin, middle: bool
) -> None:
    server, program = begin(
        {"match": "cuMemcpyHtoD", "after": 1, "action": "kill", "middle": middle}
    )
    addresses = [program.alloc(SIZE) for _ in range(3)]
    for address in addresses:
        program.write(address, DATA)
    assert all(program.read(address, SIZE) == DATA for address in addresses)
    assert fired(server) == 1
    assert program.reconnects() >= 1


def test_a_sticky_fault_is_recovered(begin: Begin) -> None:
    server, program = begin(
        {"match": "cuLaunchKernel", "after": 2, "action": "sticky", "result": 700},
        fault_recovery=True,
    )
    tape = program.new_tape()
    program.append(*tape, [1, 2, 3, 4])
    assert program.number(tape[1]) == tape_of([1, 2, 3, 4])
    assert fired(server) == 1
    assert cuda.statistics()["recoveries"] == 1


def test_a_lack_of_memory_is_reported_and_not_kept(begin: Begin) -> None:
    server, program = begin({"match": "cuMemAlloc", "action": "return", "result": 2})
    assert cuda.cuMemAlloc(SIZE) == (cuda.CUresult.CUDA_ERROR_OUT_OF_MEMORY, None)
    address = program.alloc(SIZE)
    program.write(address, DATA)
    server.kill_workers()
    assert program.read(address, SIZE) == DATA
    assert fired(server) == 1


def test_a_hang_ends_as_a_timeout_that_can_be_recovered(begin: Begin) -> None:
    server, program = begin(
        {"match": "cuLaunchKernel", "after": 1, "action": "hang", "seconds": 0.2},
        fault_recovery=True,
    )
    tape = program.new_tape()
    program.append(*tape, [5, 6])
    assert program.number(tape[1]) == tape_of([5, 6])
    assert fired(server) == 1


def test_a_lost_device_is_told_and_a_new_worker_has_another(begin: Begin) -> None:
    server, program = begin({"match": "cuMemAlloc", "after": 1, "action": "lost"})
    address = program.alloc(SIZE)
    program.write(address, DATA)
    program.sync()
    assert int(cuda.cuMemAlloc(SIZE)[0]) == 46
    assert int(cuda.cuCtxSynchronize()[0]) == 46
    server.kill_workers()
    assert_eventually(lambda: int(cuda.cuCtxSynchronize()[0]) == 0, "the device is back")
    assert program.read(address, SIZE) == DATA


def test_a_flipped_bit_is_found_by_comparing_and_gone_after_a_replay(begin: Begin) -> None:
    server, program = begin({"match": "cuMemcpyDtoH", "action": "flip", "offset": 100, "bit": 7})
    address = program.alloc(SIZE)
    program.write(address, DATA)
    read = program.read(address, SIZE)
    assert [(i, a ^ b) for i, (a, b) in enumerate(zip(read, DATA, strict=True)) if a != b] == [
        (100, 0x80)
    ]
    server.kill_workers()
    assert program.read(address, SIZE) == DATA


def test_a_slow_copy_changes_no_byte(begin: Begin) -> None:
    server, program = begin(
        {"match": "cuMemcpy.*", "action": "slow", "gb_per_s": 0.01, "times": None}
    )
    address = program.alloc(SIZE)
    program.write(address, DATA)
    assert program.read(address, SIZE) == DATA
    assert fired(server) >= 2


def test_calls_counted_in_the_session_kill_at_another_place_each_time(begin: Begin) -> None:
    server, program = begin(
        {"match": "cuMemAlloc", "every": 3, "times": 2, "count": "session", "action": "kill"}
    )
    addresses = [program.alloc(SIZE) for _ in range(6)]
    assert len({*addresses}) == 6
    assert fired(server) == 2
    ok(cuda.cuCtxSynchronize())


def test_a_rule_that_has_fired_stays_spent_when_the_server_is_started_again(begin: Begin) -> None:
    server, program = begin({"match": "cuMemcpyHtoD", "action": "kill", "middle": True})
    address = program.alloc(SIZE)
    program.write(address, DATA)
    assert program.read(address, SIZE) == DATA
    server.kill()
    server.start()  # what is replayed is the call that killed
    assert program.read(address, SIZE) == DATA
    assert fired(server) == 1


def test_a_rule_without_a_limit_parks_the_session_and_the_call_is_named(begin: Begin) -> None:
    server, program = begin({"match": "cuMemAlloc", "action": "kill", "times": None})
    deadly = program.link.next_seq
    assert cuda.cuMemAlloc(SIZE)[0] == SessionFailed.cu_result
    assert f"call {deadly} (MEM_ALLOC) ended its worker by SIGKILL" in str(cuda.last_error())
    assert fired(server) == 2
