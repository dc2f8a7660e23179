"""Client and server die; a new process goes on with what the old one had written down (E6)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from helpers import ptx
from helpers.checkpoint_files import published, unfinished
from helpers.program import Program, epochs_of, journal_of, ok, open_link, running
from helpers.program_process import ProgramProcess
from helpers.server_process import ServerProcess, assert_eventually

from outlast.errors import SessionLost
from outlast.session.rows import HandleRow
from outlast.session.store import Store
from outlast.shim import driver as cuda

DYNAMIC_SHARED = cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
SHARED = 64 << 10  # bytes, more than a kernel may have without asking


def make_objects(client: ProgramProcess) -> dict[str, int]:
    """Let a client make one object of every kind, and leave traces in them."""
    kernel, target = client.call("new_tape")
    module = client.call("load", ptx.LIST)
    total = client.call("kernel", module, "total")
    stream = client.call("stream", 1, -3)
    event = client.call("event", 2)
    unused_event = client.call("event", 0)
    variable, _ = client.call("variable", module, "offset")
    client.call("set_shared", kernel, SHARED)
    client.call("write", variable, (1000).to_bytes(8, "little"))
    client.call("append", kernel, target, [4, 2])
    client.call("record", event, stream)
    return {
        "kernel": kernel,
        "target": target,
        "module": module,
        "total": total,
        "stream": stream,
        "event": event,
        "unused_event": unused_event,
        "variable": variable,
    }


def assert_alive(program: Program, made: dict[str, int], value: int) -> None:
    """Check that every object is what it was."""
    assert program.number(made["target"]) == value
    assert cuda.cuFuncGetAttribute(DYNAMIC_SHARED, made["kernel"]) == (0, SHARED)
    assert cuda.cuStreamGetFlags(made["stream"]) == (0, 1)
    assert cuda.cuStreamGetPriority(made["stream"]) == (0, -3)
    assert cuda.cuEventSynchronize(made["event"]) == (0,)
    assert cuda.cuEventQuery(made["unused_event"]) == (0,)
    ok(cuda.cuEventRecord(made["unused_event"], made["stream"]))
    assert program.variable(made["module"], "offset") == (made["variable"], 8)
    out = program.alloc(8)
    program.launch(made["total"], (("pointer", 0), ("pointer", out)), made["stream"])
    ok(cuda.cuStreamSynchronize(made["stream"]))
    assert program.number(out) == 1000
    program.free(out)
    again = program.kernel(made["module"], "total")
    program.launch(again, (("pointer", 0), ("pointer", made["target"])))
    assert program.number(made["target"]) == 1000
    program.write(made["target"], value.to_bytes(8, "little"))
    assert ok(cuda.cuMemGetAddressRange(made["target"] + 3)) == (made["target"], 8)


def test_new_process_goes_on_with_every_object_of_a_client_and_server_that_died(
    server: ServerProcess, tmp_path: Path
) -> None:
    state = tmp_path / "client"
    with ProgramProcess(server.endpoint, "train", state) as client:
        made = make_objects(client)
        seq = client.call("checkpoint_of", str(server.state))
        client.kill()
    server.kill()
    server.start()
    with running(server.endpoint, "train", state) as program:
        assert_alive(program, made, 42)
        ok(cuda.cuModuleUnload(made["module"]))
        program.append(made["kernel"], made["target"], [7])
        assert program.number(made["target"]) == 427
        # The follower's own log begins behind the adoption: it survives a kill like any other.
        server.kill()
        server.start()
        assert program.number(made["target"]) == 427
        assert cuda.cuModuleUnload(made["module"])[0] == cuda.CUresult.CUDA_ERROR_INVALID_HANDLE
    assert f"epoch={seq}" in server.log_text()


def test_a_session_whose_objects_are_gone_is_not_passed_off_as_an_empty_one(
    tmp_path: Path,
) -> None:
    client = tmp_path / "client"
    options = ["--checkpoint-interval", "0", "--lease-ttl", "2"]
    with ServerProcess(tmp_path / "state", options) as server:
        with ProgramProcess(server.endpoint, "train", client) as program:
            program.call("stream")
            assert_eventually(lambda: handles_of(server.state, "train"), "the journal has it")
            program.kill()
        server.kill()  # before any checkpoint: the only log was the program's
        server.start()
        with pytest.raises(SessionLost, match="journal end train"):
            open_link(server.endpoint, "train", client)
        assert server.terminate() == 0
        end = [sys.executable, "-m", "outlast", "journal", "end", "train"]
        said = subprocess.check_output([*end, "--state", str(server.state)], text=True)
        assert said == "session 'train' has ended\n"
        server.start()
        with running(server.endpoint, "train", client) as fresh:
            assert fresh.number(fresh.alloc(8)) == 0


def handles_of(state: Path, session: str) -> list[HandleRow]:
    """Return what the journal lists of a session."""
    store = Store.open(f"sqlite:///{state / 'journal.db'}")
    try:
        return store.handles(session)
    finally:
        store.close()


def test_one_checkpoint_is_restored_twice_in_a_row(server: ServerProcess, tmp_path: Path) -> None:
    state = tmp_path / "client"
    with running(server.endpoint, "train", state) as program:
        kernel, target = program.new_tape()
        program.append(kernel, target, [1, 2])
        seq = program.checkpoint(server.state)
        for digit, expected in ((3, 123), (4, 1234)):
            server.kill()
            server.start()
            program.append(kernel, target, [digit])
            assert program.number(target) == expected
            assert [row.seq for row in epochs_of(server.state, "train")] == [seq]
    assert server.log_text().count(f"epoch={seq} kept=False session=train") >= 2


def test_process_without_the_resume_token_cannot_take_the_session(
    server: ServerProcess, program: Program, tmp_path: Path
) -> None:
    kernel, target = program.new_tape()
    program.append(kernel, target, [5])
    with (
        ProgramProcess(server.endpoint, "train", tmp_path / "stranger") as stranger,
        pytest.raises(AssertionError, match="ended"),
    ):
        stranger.call("reconnects")
    program.append(kernel, target, [6])
    assert program.number(target) == 56


@pytest.mark.slow
def test_chain_of_ten_checkpoints_and_restores_grows_neither_journal_nor_files(
    tmp_path: Path,
) -> None:
    state = tmp_path / "state"
    with (
        ServerProcess(state, ["--checkpoint-interval", "0", "--lease-ttl", "3"]) as server,
        running(server.endpoint, "train", tmp_path / "client") as program,
    ):
        kernel, target = program.new_tape()
        sizes = []
        expected = 0
        for digit in range(10):
            program.append(kernel, target, [digit])
            program.checkpoint(state)
            server.kill_workers()
            expected = expected * 10 + digit
            assert program.number(target) == expected
            newest = epochs_of(state, "train")[0]
            sizes.append(newest.size)
            with journal_of(state) as journal:
                handles = [row.kind for row in journal.handles("train")]
                assert sorted(handles) == ["context", "function", "module"]
                assert len(journal.allocations("train")) == 1
        assert max(sizes) - min(sizes) < 256, sizes

        last = epochs_of(state, "train")[0].epoch

        def forgotten() -> bool:
            program.append(kernel, target, [0])
            program.checkpoint(state)
            with journal_of(state) as journal:
                kept = [row.epoch for row in journal.epochs("train", unusable=True)]
            return min(kept) > last and len(published(state)) <= len(kept) and not unfinished(state)

        # What is marked for removal goes when the lease of a rival would have ended.
        assert_eventually(forgotten, "the chain's epochs are removed, rows and files", 20.0)
