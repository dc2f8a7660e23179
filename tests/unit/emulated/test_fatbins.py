"""The emulated device finds the text it runs in every kind of image."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.fatbins import ELF, LZ4, PTX, ZSTD, InMemory, entry, fatbin, sample, text, wrapper

INVALID_IMAGE, NO_BINARY = 200, 209


def chosen(host: Any, image: Any) -> int:
    """Return the architecture that the loaded text says it is for."""
    result, module = host.cuda.cuModuleLoadData(image)
    assert result == 0, host.cuda.load_log
    kernel = host.cuda.cuModuleGetFunction(module, b"which")[1]
    out = host.put(np.zeros(1, np.int32))
    host.run(kernel, 1, 1, out)
    assert host.cuda.cuModuleUnload(module)[0] == 0
    return int(host.get(out, np.zeros(1, np.int32))[0])


@pytest.mark.parametrize("name", ["none", "speed", "size", "all-speed"])
def test_the_newest_text_for_this_device_runs(host: Any, name: str) -> None:
    assert chosen(host, sample(name)) == 80


@pytest.mark.parametrize("flags", [0, LZ4, ZSTD])
def test_an_older_text_runs_where_there_is_no_better_one(host: Any, flags: int) -> None:
    image = fatbin(entry(PTX, 90, text(90), flags), entry(PTX, 75, text(75), flags))
    assert chosen(host, image) == 75


def test_an_image_may_be_at_an_address_behind_a_wrapper(host: Any) -> None:
    held = InMemory(sample("size"))
    assert chosen(host, held.address) == 80
    assert chosen(host, InMemory(wrapper(held.address)).address) == 80
    assert chosen(host, wrapper(held.address)) == 80


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        (sample("cubin"), "the fatbin has no PTX; this device runs 80"),
        (fatbin(), "the fatbin has no PTX"),
        (fatbin(entry(PTX, 90, text(90)), entry(ELF, 80, b"")), "has PTX for 90 only"),
    ],
)
def test_an_image_without_text_for_this_device_is_no_binary_for_it(
    host: Any, image: bytes, reason: str
) -> None:
    assert host.cuda.cuModuleLoadData(image) == (NO_BINARY, None)
    assert reason in host.cuda.load_log


@pytest.mark.parametrize(
    "image",
    [
        sample("size")[:-1],
        sample("size")[:20],
        fatbin(entry(PTX, 80, text(80), ZSTD, size=1 << 40)),
        fatbin(entry(PTX, 80, text(80), LZ4, size=10)),
        fatbin(entry(PTX, 80, bytes(8 << 20), ZSTD, size=1 << 10)),
        fatbin(entry(PTX, 80, b"\xff\xfe" * 100, ZSTD)),
        wrapper(0x10_0000),
    ],
)
def test_a_damaged_fatbin_is_an_invalid_image_and_the_log_says_why(
    host: Any, image: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    assert host.cuda.cuModuleLoadData(image) == (INVALID_IMAGE, None)
    assert host.cuda.load_log
    assert len(caplog.records) == 1
    assert "\n" not in caplog.records[0].getMessage()
