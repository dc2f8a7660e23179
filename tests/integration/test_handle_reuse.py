"""Objects come and go by the hundred: no stale entry is ever used (A6)."""

from __future__ import annotations

import json
import threading
from pathlib import Path

from helpers import ptx
from helpers.program import TYPES, Program, journal_of, ok, running
from helpers.server_process import ServerProcess, assert_eventually

from outlast.shim import driver as cuda

ROUNDS = 200


def run_short(program: Program, module: int, target: int) -> None:
    program.launch(program.kernel(module, "k"), (("pointer", target),))


def run_long(program: Program, module: int, target: int, number: int) -> None:
    parameters = (("pointer", target), ("u64", number), ("f32", 2.0))
    program.launch(program.kernel(module, "k"), parameters)


def check_reloads_in_turns(program: Program, target: int, rounds: int) -> None:
    """Load, run and unload two modules whose kernel has one name and two layouts."""
    for number in range(1, rounds + 1):
        module = program.load(ptx.SHORT_LAYOUT)
        run_short(program, module, target)
        assert program.number(target, 4) == 7
        ok(cuda.cuModuleUnload(module))
        module = program.load(ptx.LONG_LAYOUT)
        run_long(program, module, target, number)
        assert program.number(target, 4) == 2 * number
        ok(cuda.cuModuleUnload(module))


def test_reloaded_modules_are_never_launched_with_each_others_layout(program: Program) -> None:
    check_reloads_in_turns(program, program.alloc(4), ROUNDS)


def test_two_threads_reload_modules_beside_each_other(program: Program) -> None:
    failures: list[BaseException] = []
    targets = [program.alloc(4) for _ in range(2)]
    # Looked up by the main thread, used by the others all the while.
    kept = program.load(ptx.LONG_LAYOUT)
    kept_target = program.alloc(4)

    def work(target: int) -> None:
        try:
            program.use_primary()
            for round_ in range(10):
                check_reloads_in_turns(program, target, 5)
                run_long(program, kept, kept_target, 21)
                assert program.number(kept_target, 4) == 42, round_
        except AssertionError as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(target,)) for target in targets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(50)
    assert not failures


def test_function_of_an_unloaded_module_is_refused_in_every_thread(program: Program) -> None:
    target = program.alloc(4)
    module = program.load(ptx.SHORT_LAYOUT)
    function = program.kernel(module, "k")
    program.launch(function, (("pointer", target),))
    ok(cuda.cuModuleUnload(module))
    replaced = program.load(ptx.LONG_LAYOUT)
    results: list[int] = []

    def launch() -> None:
        program.use_primary()
        parameters = ((target,), (TYPES["pointer"],))
        results.append(cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, 0, parameters, 0)[0])

    thread = threading.Thread(target=launch)
    thread.start()
    thread.join(10)
    launch()
    assert results == [cuda.CUresult.CUDA_ERROR_INVALID_HANDLE] * 2
    run_long(program, replaced, target, 4)
    assert program.number(target, 4) == 8


def test_streams_events_allocations_and_contexts_come_and_go(program: Program) -> None:
    kernel, target = program.new_tape()
    seen: set[int] = set()
    expected = 0
    for number in range(ROUNDS):
        stream, event, address = program.stream(), program.event(), program.alloc(64)
        assert not {stream, event} & seen, "a handle was given twice"
        seen |= {stream, event}
        program.launch(kernel, (("pointer", target), ("u32", number % 10)), stream)
        expected = (expected * 10 + number % 10) % 2**64
        ok(cuda.cuEventRecord(event, stream))
        ok(cuda.cuStreamWaitEvent(0, event, 0))
        program.write(address, bytes([number]) * 64)
        assert program.read(address, 64) == bytes([number]) * 64
        ok(cuda.cuEventDestroy(event))
        ok(cuda.cuStreamDestroy(stream))
        program.free(address)
    for number in range(20):
        context = ok(cuda.cuCtxCreate(None, 0, 0))
        module = program.load(ptx.SHORT_LAYOUT)
        inside = program.alloc(4)
        run_short(program, module, inside)
        assert program.number(inside, 4) == 7
        ok(cuda.cuCtxDestroy(context))
        assert cuda.cuModuleUnload(module)[0] == cuda.CUresult.CUDA_ERROR_INVALID_HANDLE, number
        program.use_primary()
    assert program.number(target) == expected


def test_journal_and_restore_hold_only_what_lives_after_much_coming_and_going(
    tmp_path: Path,
) -> None:
    state = tmp_path / "state"
    with (
        ServerProcess(state, ["--checkpoint-interval", "0"]) as server,
        running(server.endpoint, "reuse", tmp_path / "client") as program,
    ):
        scratch = program.alloc(4)
        check_reloads_in_turns(program, scratch, 8)
        for _ in range(50):
            ok(cuda.cuStreamDestroy(program.stream()))
            ok(cuda.cuEventDestroy(program.event()))
            program.free(program.alloc(4096))
        program.free(scratch)
        kernel, target = program.new_tape()
        stream = program.stream(1, -2)
        program.append(kernel, target, [1])
        program.checkpoint(state)

        def live() -> tuple[list[str], list[int]]:
            with journal_of(state) as journal:
                handles = journal.handles("reuse")
                return (
                    sorted(row.kind for row in handles),
                    [row.address for row in journal.allocations("reuse")],
                )

        expected = (["context", "function", "module", "stream"], [target])
        assert_eventually(lambda: live() == expected, f"the journal holds {expected}")
        manifest = next((state / "checkpoints").rglob("manifest.json"))
        stored = json.loads(manifest.read_text())
        assert len(stored["epoch"]["handles"]) == len(expected[0])
        assert len(stored["epoch"]["images"]) == 1

        server.kill()
        server.start()
        program.append(kernel, target, [2])
        assert program.number(target) == 12
        assert cuda.cuStreamGetPriority(stream) == (cuda.CUresult.CUDA_SUCCESS, -2)
        assert live() == expected
        check_reloads_in_turns(program, program.alloc(4), 1)
