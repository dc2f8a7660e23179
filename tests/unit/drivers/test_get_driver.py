"""Devices by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from outlast.errors import ConfigError
from outlast.server.drivers import get_driver, probe
from outlast.server.drivers.registry import require, several


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "missing", lambda *_: "the NVIDIA driver finds no GPU")


@pytest.mark.usefixtures("no_gpu")
def test_auto_is_the_emulated_device_where_there_is_no_gpu() -> None:
    driver = get_driver("auto", base=0x1700_0000_0000, arena_size=8 << 30)
    assert driver.name == "emulated"
    driver.close()


def test_auto_is_cuda_where_there_is_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "missing", lambda *_: "")
    assert require("auto") == "cuda"


@pytest.mark.usefixtures("no_gpu")
def test_cuda_without_a_gpu_is_refused_with_what_is_missing() -> None:
    with pytest.raises(ConfigError, match="finds no GPU; --device emulated"):
        require("cuda")


def test_the_emulated_device_may_be_several_and_a_gpu_is_what_it_is() -> None:
    driver = get_driver(several("emulated", 3), base=0x1700_0000_0000, arena_size=8 << 30)
    bases = [device.arena_base for device in driver.devices()]
    driver.close()
    assert bases == [0x1700_0000_0000 + n * (8 << 30) for n in range(3)]
    assert several("emulated", 1) == "emulated"
    assert several("cuda", 3) == "cuda"


def test_an_unknown_device_is_refused() -> None:
    with pytest.raises(ConfigError, match="emulated"):
        get_driver("opencl")


def test_the_process_that_looks_for_a_gpu_says_what_it_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It says so in words, and whoever asks has loaded nothing of CUDA."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "driver" in probe.missing() or "no GPU" in probe.missing() or "CUDA" in probe.missing()


def test_a_probe_that_dies_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe.sys, "executable", "/bin/false")
    assert "exit code 1" in probe.missing()


def test_a_gpu_that_was_found_is_not_looked_for_again_under_the_same_driver(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    memory, version = tmp_path / "gpu_found", tmp_path / "version"
    version.write_text("580.1")
    monkeypatch.setattr(probe, "DRIVER_VERSION", version)
    looks = []

    def look() -> str:
        looks.append(version.read_text())
        return "" if version.read_text() != "580.3" else "nothing here"

    monkeypatch.setattr(probe, "_ask", look)
    assert [probe.missing(memory), probe.missing(memory)] == ["", ""]
    version.write_text("580.2")
    assert [probe.missing(memory), probe.missing(memory)] == ["", ""]
    assert looks == ["580.1", "580.2"]
    version.write_text("580.3")  # what is not found is looked for each time
    assert [probe.missing(memory), probe.missing(memory)] == ["nothing here"] * 2
    assert looks == ["580.1", "580.2", "580.3", "580.3"]
    assert [probe.missing(), probe.missing()] == ["nothing here"] * 2
    assert len(looks) == 6
