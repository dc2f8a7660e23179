"""Devices by name."""

from __future__ import annotations

import pytest

from outlast.errors import ConfigError
from outlast.server.drivers import get_driver, probe
from outlast.server.drivers.registry import require


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "missing", lambda: "the NVIDIA driver finds no GPU")


@pytest.mark.usefixtures("no_gpu")
def test_auto_is_the_emulated_device_where_there_is_no_gpu() -> None:
    driver = get_driver("auto", base=0x1700_0000_0000, arena_size=8 << 30)
    assert driver.name == "emulated"
    driver.close()


def test_auto_is_cuda_where_there_is_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "missing", lambda: "")
    assert require("auto") == "cuda"


@pytest.mark.usefixtures("no_gpu")
def test_cuda_without_a_gpu_is_refused_with_what_is_missing() -> None:
    with pytest.raises(ConfigError, match="finds no GPU; --device emulated"):
        require("cuda")


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
