"""What no client of ours would send reaches a worker: it refuses, and goes on (A2)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from helpers.program import Program, ok, running, tape_of
from helpers.program_process import ProgramProcess
from helpers.server_process import ServerProcess, assert_eventually

from outlast.errors import SessionLost
from outlast.session import wire
from outlast.session.operations import OPS, Op, OpClass
from outlast.session.schema import HANDLE_BASE, Kind
from outlast.shim import driver as cuda

SUCCESS = (cuda.CUresult.CUDA_SUCCESS,)
#: Names nothing, NULL, odd, and a multiple of the step that was never given out.
NUMBERS = (2**64 - 1, 0, 3, HANDLE_BASE + 0x7777_0000)
#: A device that there is not, so that nothing valid is asked for by chance.
NO_DEVICE = 99
#: Calls whose first field names a new object: forged, they would make one.
CREATES = {Op.CTX_CREATE, Op.MODULE_LOAD, Op.FUNCTION_GET, Op.STREAM_CREATE, Op.EVENT_CREATE}


@pytest.fixture(scope="module")
def neighbour(
    server: ServerProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProgramProcess]:
    """A second session, in a process of its own."""
    with ProgramProcess(server.endpoint, "other", tmp_path_factory.mktemp("other")) as process:
        yield process


@pytest.fixture
def watched(
    server: ServerProcess, program: Program, neighbour: ProgramProcess
) -> Iterator[Program]:
    """A program; afterwards it, its neighbour and all processes must be as they were."""
    kernel, target = neighbour.call("new_tape")
    neighbour.call("append", kernel, target, [1])
    workers = sorted(server.session_workers())
    gateway = server.pid
    yield program
    neighbour.call("append", kernel, target, [2])
    assert neighbour.call("number", target) == 12
    # What failed late is reported by one wait each.
    assert any(cuda.cuCtxSynchronize() == SUCCESS for _ in range(100))
    address = program.alloc(4096)
    program.write(address, bytes(4095) + b"!")
    assert program.read(address, 4096) == bytes(4095) + b"!"
    assert sorted(server.session_workers()) == workers
    assert server.pid == gateway


def forged(op: Op, number: int) -> list[Any]:
    """Return the fields of a record whose every handle, address and size is ``number``."""
    fields = OPS[op].fields[1 if OPS[op].cls is OpClass.QUERY else 0 :]
    values = {"u64": number, "u32": NO_DEVICE, "i32": -1}
    return [values[field.type] for field in fields if field.type != "bytes"]


def has_data(op: Op) -> bool:
    return any(field.type == "bytes" for field in OPS[op].fields)


@pytest.mark.parametrize("number", NUMBERS, ids=hex)
def test_forged_handles_and_addresses_give_errors_and_kill_nobody(
    watched: Program, number: int
) -> None:
    link = watched.link
    for op, spec in OPS.items():
        if spec.cls is OpClass.CONTROL or op in CREATES:
            continue
        data = b"\0" * 9 if has_data(op) else None
        if spec.cls is OpClass.ONE_WAY:
            link.send(op, *forged(op, number), data=data)
        elif spec.cls is OpClass.ANSWERED:
            valid = op is Op.MEM_ALLOC and number == 3
            result = link.call(op, *forged(op, number), data=data).result
            assert (result == 0) is valid, op.name
        elif op not in (Op.CTX_SYNC, Op.MEM_INFO):
            special = op in (Op.STREAM_QUERY, Op.STREAM_SYNC) and number == 0
            assert (link.query(op, *forged(op, number)).result == 0) is special, op.name
    assert link.reconnects == 0


def test_handles_of_the_neighbour_and_of_a_wrong_kind_name_nothing(
    watched: Program, neighbour: ProgramProcess
) -> None:
    ours = (watched.stream(), watched.event(), watched.load(".version 7.0\n.target sm_80\n"))
    stream, event, module = ours
    foreign = [neighbour.call("stream") for _ in range(40)][-1]
    link = watched.link
    for op, handle in (
        *((op, event) for op in (Op.STREAM_DESTROY, Op.MODULE_UNLOAD, Op.CTX_DESTROY)),
        *((op, stream) for op in (Op.EVENT_DESTROY, Op.MODULE_UNLOAD, Op.CTX_DESTROY)),
        *((op, module) for op in (Op.EVENT_DESTROY, Op.STREAM_DESTROY, Op.CTX_DESTROY)),
        *((op, foreign) for op in (Op.EVENT_DESTROY, Op.STREAM_DESTROY, Op.MODULE_UNLOAD)),
    ):
        link.send(op, handle)
        with pytest.raises(AssertionError):
            watched.sync()
        watched.sync()
    assert link.query(Op.EVENT_SYNC, stream).result == 400
    assert link.query(Op.STREAM_SYNC, event).result == 400
    assert link.query(Op.STREAM_SYNC, foreign).result == 400
    ok(cuda.cuEventRecord(event, stream))
    ok(cuda.cuEventSynchronize(event))


def raw(program: Program, frames: Sequence[bytes]) -> None:
    """Send frames over the attached connection, past the client's log."""
    pump = program.link._pump
    with program.link._mutex:
        while pump.polling or pump.transport is None:
            pump.wake()
            pump.changed.wait(0.05)
        pump.transport.send(list(frames))


def malformed(generation: int, next_seq: int) -> Iterator[tuple[str, list[bytes]]]:
    """Yield messages that a worker must refuse before it applies anything."""

    def calls(stream: bytes, first: int = next_seq) -> bytes:
        return wire.pack_calls(generation, first, 1, 0, stream)

    record = wire.pack_record(Op.STREAM_DESTROY, 16)
    header = wire.pack_record(Op.MEM_ALLOC, 64)[:8]
    copy = wire.pack_record(Op.COPY_HTOD, 16, 0, 0, payload=True)
    outcome = wire.pack_record(Op.OUTCOME, 10**9, 0, 0)
    yield "a gap", [calls(record, next_seq + 7)]
    yield "a cut record", [calls(record[:-3])]
    yield "a cut record header", [calls(record[:3])]
    yield "a length beyond the frame", [calls(header)]
    yield "an unknown operation", [calls(b"\xff\x7f" + record[2:])]
    yield "no call where one is said to be", [calls(b"")]
    yield "a payload that is missing", [calls(copy)]
    yield "an outcome of another call", [calls(outcome + record)]
    yield "a cut header", [calls(b"")[:-1]]
    yield "an unknown kind", [calls(record)[:3] + b"\xee" + calls(record)[4:]]
    yield "no frame", [b""]
    yield "a pickle", [b"\x80\x04\x95" + b"cos\nsystem\n." * 9]


def test_malformed_messages_break_the_connection_and_the_session_goes_on(
    watched: Program,
) -> None:
    kernel, target = watched.new_tape()
    link = watched.link
    digits: list[int] = []
    for index, (what, _) in enumerate(malformed(0, 1)):
        digits.append(index % 10)
        watched.append(kernel, target, digits[-1:])
        watched.sync()
        before = link.reconnects
        messages = list(malformed(link._session.generation, link.next_seq))
        raw(watched, messages[index][1])
        assert_eventually(partial(has_reconnected, watched, before), f"{what} is refused", 10.0)
        assert watched.number(target) == tape_of(digits), what


def has_reconnected(program: Program, before: int) -> bool:
    return program.link.reconnects > before


def test_client_whose_calls_are_not_in_its_log_loses_its_session_and_no_other(
    server: ServerProcess, neighbour: ProgramProcess, tmp_path: Path
) -> None:
    kernel, target = neighbour.call("new_tape")
    neighbour.call("append", kernel, target, [3])
    with running(server.endpoint, "liar", tmp_path, end=True) as program:
        program.sync()  # what it has called is applied: the forged batch is the next one
        record = wire.pack_record(Op.PRIMARY_RETAIN, 0)
        generation, first = program.link._session.generation, program.link.next_seq
        raw(program, [wire.pack_calls(generation, first, 5, 0, record)])
        assert_eventually(lambda: program.link._session.error, "the session is lost", 10.0)
        assert isinstance(program.link._session.error, SessionLost)
        assert cuda.cuCtxSynchronize() != SUCCESS
    neighbour.call("append", kernel, target, [4])
    assert neighbour.call("number", target) == 34
    assert neighbour.call("reconnects") == 0


def test_messages_of_another_generation_change_nothing(watched: Program) -> None:
    kernel, target = watched.new_tape()
    watched.append(kernel, target, [4])
    watched.sync()
    link = watched.link
    for other in (link._session.generation - 1, link._session.generation + 1):
        before = link.reconnects
        record = wire.pack_record(Op.MEMSET, target, 0, 8, 1, 1, 0)
        raw(watched, [wire.pack_calls(other, link.next_seq, 1, 0, record)])
        assert_eventually(partial(has_reconnected, watched, before), "it is refused", 10.0)
        raw(watched, [wire.pack_message(Kind.BYE, generation=other, end=1, reason="not ours")])
    watched.append(kernel, target, [2])
    assert watched.number(target) == 42
