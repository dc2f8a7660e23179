"""Compiled kernels on disk: reused by the next process, never trusted when damaged."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outlast.server.drivers.emulated.jit import Jit, default_cache_directory, undefined_symbols


@pytest.fixture
def run_store(make_host: Any, tmp_path: Path) -> Callable[[], tuple[int, int]]:
    """Run a kernel on a new device with the cache in ``tmp_path``; return how it was built."""

    def run() -> tuple[int, int]:
        jit = Jit(tmp_path)
        host = make_host(jit=jit)
        target = host.put(np.zeros(1, np.int32))
        host.run(host.kernel("store"), 1, 1, target, 7)
        assert host.get(target, np.zeros(1, np.int32))[0] == 7
        host.cuda.close()
        return jit.compiled, jit.reused

    return run


def test_a_second_process_compiles_nothing(run_store: Any) -> None:
    assert run_store() == (2, 0)  # the engine and the kernel
    assert run_store() == (0, 2)


def test_damaged_entries_are_compiled_again_and_replaced(
    run_store: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run_store()
    for number, path in enumerate(sorted(tmp_path.iterdir())):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(b"" if number else bytes(data))
    with caplog.at_level(logging.WARNING):
        assert run_store() == (2, 0)
    assert "damaged" in caplog.text
    assert run_store() == (0, 2)


def test_a_cache_that_cannot_be_written_costs_time_only(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    jit = Jit(blocked / "below")
    code = jit.build("define i32 @answer() {\n ret i32 42\n}")
    assert code.address("answer")
    assert (jit.compiled, jit.reused) == (1, 0)


def test_no_temporary_file_is_left(run_store: Any, tmp_path: Path) -> None:
    run_store()
    assert {path.suffix for path in tmp_path.iterdir()} == {".o"}


def test_the_environment_names_the_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTLAST_CACHE_DIR", "/somewhere")
    assert default_cache_directory() == Path("/somewhere/ptx")
    monkeypatch.delenv("OUTLAST_CACHE_DIR")
    assert default_cache_directory() == Path.home() / ".cache" / "outlast" / "ptx"


def test_a_missing_function_is_found_before_it_is_called(tmp_path: Path) -> None:
    ir = """
        declare void @no_such_function()
        define void @f() {
          call void @no_such_function()
          ret void
        }
    """
    with pytest.raises(RuntimeError, match="no_such_function"):
        Jit(tmp_path).build(ir)
    stored = next(tmp_path.glob("*.o")).read_bytes()[32:]
    assert undefined_symbols(stored) == ["no_such_function"]
