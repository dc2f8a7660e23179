"""A call that kills its worker each time parks the session instead of killing for ever."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.program import Program, running
from helpers.program_process import ProgramProcess
from helpers.server_process import ServerProcess

from outlast.errors import SessionFailed
from outlast.shim import driver as cuda

#: Kills the worker of one session inside a module load, as a compiler that crashes does; and
#: has the server wait less long for memory that somebody else may have.
HOOKS = """
import os, signal, sys
if "outlast.server.worker" in " ".join(sys.orig_argv):
    from outlast.server.drivers.emulated.modules import ModuleCalls
    load = ModuleCalls.cuModuleLoadData
    def cuModuleLoadData(self, image):
        if b"deadly" in bytes(image):
            os.kill(os.getpid(), signal.SIGSEGV)
        return load(self, image)
    ModuleCalls.cuModuleLoadData = cuModuleLoadData
elif "serve" in sys.orig_argv:
    from outlast.server.workers import CrashCount
    CrashCount.DIVERGED_FOR = 0.5
"""
DEADLY = ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry deadly() { ret; }\n"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server on whose device some images are deadly."""
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    (hooks / "sitecustomize.py").write_text(HOOKS)
    path = os.pathsep.join([str(hooks), os.environ.get("PYTHONPATH", "")])
    arguments = ["--checkpoint-interval", "0"]
    with ServerProcess(tmp_path / "state", arguments, {"PYTHONPATH": path}) as started:
        yield started


def test_call_that_kills_its_worker_twice_parks_the_session_and_is_named(
    server: ServerProcess, program: Program, tmp_path: Path
) -> None:
    with ProgramProcess(server.endpoint, "neighbour", tmp_path / "neighbour") as neighbour:
        kernel, target = neighbour.call("new_tape")
        neighbour.call("append", kernel, target, [1])
        ours, address = program.new_tape()
        program.append(ours, address, [7])
        program.checkpoint(server.state)
        deadly = program.link.next_seq

        assert cuda.cuModuleLoadData(DEADLY.encode())[0] == SessionFailed.cu_result
        error = cuda.last_error()
        assert isinstance(error, SessionFailed)
        assert f"call {deadly} (MODULE_LOAD) ended its worker by SIGSEGV" in str(error)
        assert server.log_text().count("worker died") == 2
        assert cuda.cuMemAlloc(8)[0] == SessionFailed.cu_result
        assert cuda.cuCtxSynchronize()[0] == SessionFailed.cu_result

        neighbour.call("append", kernel, target, [2])
        assert neighbour.call("number", target) == 12
        assert server.log_text().count("worker died") == 2
        assert list((server.state / "checkpoints").rglob("manifest.json"))

    server.kill()
    server.start()
    assert cuda.cuMemAlloc(8)[0] == SessionFailed.cu_result
    assert "session parked" in server.log_text()


def test_replay_that_fails_alike_each_time_parks_the_session_and_names_the_call(
    server: ServerProcess, tmp_path: Path
) -> None:
    server.kill()
    server.environment["LUPINE_EMULATED_MEMORY"] = str(64 << 20)
    server.start()
    with running(server.endpoint, "train", tmp_path / "client") as program:
        program.append(*program.new_tape(), [7])
        seq = program.link.next_seq
        program.alloc(40 << 20)
        program.sync()
        server.environment["LUPINE_EMULATED_MEMORY"] = str(16 << 20)
        server.kill()
        server.start()

        assert cuda.cuMemAlloc(8)[0] == SessionFailed.cu_result
        assert f"call {seq} cannot be replayed" in str(cuda.last_error())
        assert f"replay diverged at call {seq}" in server.log_text()


def test_worker_killed_from_outside_between_calls_is_replaced_each_time(
    server: ServerProcess, program: Program
) -> None:
    kernel, target = program.new_tape()
    expected = 0
    for digit in range(1, 5):
        program.append(kernel, target, [digit])
        expected = expected * 10 + digit
        assert program.number(target) == expected
        server.kill_workers()
    assert program.number(target) == expected
    assert "parked" not in server.log_text()
