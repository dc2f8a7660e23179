"""Faults on the emulated device by rules."""

from __future__ import annotations

import ctypes
import json
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.kernels import PTX

from outlast.errors import ConfigError
from outlast.fault_rules import read_rules
from outlast.server.drivers.base import Rows
from outlast.server.drivers.emulated import EmulatedDriver
from outlast.server.drivers.emulated.fault_calls import copied, half
from outlast.server.drivers.emulated.faults import Counts, Faults, inject

Break = Callable[..., EmulatedDriver]


@pytest.fixture
def device() -> Iterator[EmulatedDriver]:
    driver = EmulatedDriver(memory=64 << 20)
    context = driver.cuDevicePrimaryCtxRetain(0)[1]
    driver.cuCtxSetCurrent(context)
    yield driver
    driver.close()


@pytest.fixture
def broken(device: EmulatedDriver) -> Break:
    """Give the device rules."""

    def rules(*entries: dict[str, Any], session: str = "train") -> EmulatedDriver:
        text = json.dumps(entries)
        Faults(device, read_rules(text), session, Counts(text, len(entries)))
        return device

    return rules


def codes(driver: EmulatedDriver, count: int) -> list[int]:
    return [int(driver.cuMemAlloc(64)[0]) for _ in range(count)]


def kernel_of(driver: EmulatedDriver) -> int:
    module = driver.cuModuleLoadData(PTX.encode())[1]
    return int(driver.cuModuleGetFunction(module, b"increment")[1])


OOM = {"match": "cuMemAlloc", "action": "return", "result": 2}


def test_only_functions_that_a_rule_names_are_wrapped(broken: Break) -> None:
    driver = broken(OOM)
    assert {name for name in vars(driver) if not name.startswith("_")} >= {
        "cuMemAlloc",
        "allocate_at",
    }
    assert "launch_packed" not in vars(driver)
    assert "cuMemAllocAsync" not in vars(driver)


def test_calls_pass_before_and_between(broken: Break) -> None:
    driver = broken(OOM | {"after": 1, "every": 2, "times": 2})
    assert codes(driver, 7) == [0, 2, 0, 2, 0, 0, 0]
    assert driver.fault() is None


def test_dice_fall_alike_for_a_seed(broken: Break) -> None:
    dice = OOM | {"p": 0.5, "times": None}
    text = json.dumps([dice | {"seed": 3}])
    driver = broken(dice | {"seed": 3})
    first = codes(driver, 40)
    del driver.cuMemAlloc
    Faults(driver, read_rules(text), "train", Counts(text, 1))
    assert codes(driver, 40) == first
    assert 5 < first.count(2) < 35


def test_other_sessions_and_devices_are_left_alone(broken: Break) -> None:
    assert codes(broken(OOM | {"session": "other"}, OOM | {"device": 1}), 2) == [0, 0]
    assert codes(broken(OOM | {"session": "train", "device": 0}), 1) == [2]


@pytest.mark.parametrize("code", [700, 214, 719])
def test_a_sticky_fault_names_the_call(broken: Break, code: int) -> None:
    driver = broken({"match": "cuMemAlloc", "action": "sticky", "result": code})
    driver.tag = 41
    assert codes(driver, 2) == [code, code]
    fault = driver.fault()
    assert fault is not None
    assert (fault.result, fault.tag) == (code, 41)


def test_a_lost_device_fails_every_call_and_a_reset_does_not_bring_it_back(broken: Break) -> None:
    driver = broken({"match": "cuMemAlloc", "action": "lost"})
    assert driver.cuDeviceGetCount()[0] == 0
    assert codes(driver, 1) == [46]
    assert driver.cuDeviceGetCount()[0] == 46
    assert driver.cuDevicePrimaryCtxReset(0) == (46,)
    assert codes(driver, 1) == [46]
    assert driver.enqueue_read(0, 8, 0)[0] == 46


def test_a_launch_that_hangs_is_ended_as_a_timeout(broken: Break) -> None:
    driver = broken({"match": "cuLaunchKernel", "action": "hang", "seconds": 0.05})
    kernel, target = kernel_of(driver), driver.cuMemAlloc(4)[1]
    parameters = int(target).to_bytes(8, "little")
    assert driver.launch_packed(kernel, 0, 1, 1, 1, 1, 1, 1, 0, parameters) == 0
    assert int(driver.cuCtxSynchronize()[0]) == 702
    fault = driver.fault()
    assert fault is not None
    assert "increment" in fault.reason


def test_a_hang_without_an_end_ends_with_the_device(broken: Break) -> None:
    driver = broken({"match": "cuMemAlloc", "action": "hang"})
    assert codes(driver, 1) == [0]
    assert not driver.wait(driver.ticket(), 0.05)
    driver.close()


def test_a_call_within_a_call_counts_once(broken: Break) -> None:
    driver = broken({"match": "cuLaunchKernel", "action": "return", "result": 1, "after": 1})
    kernel, target = kernel_of(driver), driver.cuMemAlloc(4)[1]
    given = ((int(target),), (ctypes.c_uint64,))
    launched = [driver.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, 0, given) for _ in range(3)]
    assert [int(code) for (code,) in launched] == [0, 1, 0]


def test_a_slow_copy_takes_its_time_on_the_device(broken: Break) -> None:
    driver = broken({"match": "cuMemcpyHtoD", "action": "slow", "gb_per_s": 0.001})
    target = driver.cuMemAlloc(100_000)[1]
    began = time.monotonic()
    assert driver.enqueue_write(int(target), bytes(100_000), 0) == 0
    assert driver.wait(driver.ticket(), 30.0)
    assert time.monotonic() - began >= 0.1


def test_a_bit_flips_at_its_place_in_the_order(
    broken: Break, caplog: pytest.LogCaptureFixture
) -> None:
    flip = {"match": "cuMemcpyDtoH", "action": "flip", "allocation": 2, "offset": 5, "bit": 3}
    driver = broken(flip, {"match": "cuMemcpyDtoH", "action": "flip", "allocation": 9})
    first, second = (int(driver.cuMemAlloc(16)[1]) for _ in range(2))
    with caplog.at_level(logging.WARNING, "outlast.server.faults"):
        for address in (first, second):
            assert driver.enqueue_write(address, bytes(16), 0) == 0
        read = [driver.enqueue_read(address, 16, 0)[1] for address in (first, second)]
        assert driver.wait(driver.ticket(), 30.0)
    assert bytes(read[0]) == bytes(16)
    assert bytes(read[1]) == bytes(5) + b"\x08" + bytes(10)
    assert "fault rule 2 flips nothing" in caplog.text


def test_each_firing_is_logged(broken: Break, caplog: pytest.LogCaptureFixture) -> None:
    driver = broken(OOM | {"times": 2})
    driver.tag = 17
    with caplog.at_level(logging.WARNING, "outlast.server.faults"):
        codes(driver, 4)
    said = [vars(record) for record in caplog.records]
    assert [(s["rule"], s["function"], s["session"], s["seq"]) for s in said] == [
        (1, "cuMemAlloc", "train", 17)
    ] * 2


def test_counts_outlive_their_process_until_the_rules_change(tmp_path: Path) -> None:
    (rule,) = read_rules(json.dumps([OOM]))
    for rules, spent, call in (("a", False, 1), ("a", True, 2), ("b", False, 1)):
        counts = Counts(rules, 1, tmp_path / "counts")
        assert counts.spent(rule) is spent
        assert counts.called(rule) == call
        counts.fired(rule)
        counts.close()


def test_another_device_cannot_be_made_to_fail(tmp_path: Path) -> None:
    class Other:
        name = "cuda"

    with pytest.raises(ConfigError, match="for the emulated device, not for cuda"):
        inject(Other(), json.dumps([OOM]), "train", tmp_path / "x.lock")  # type: ignore[arg-type]


ROWS = Rows(5, 4, 8)


@pytest.mark.parametrize(
    ("method", "args", "size", "first"),
    [
        ("enqueue_write", (1, b"abcdef", 0), 6, (1, b"abc", 0)),
        ("enqueue_read", (1, 6, 0), 6, (1, 3, 0)),
        ("cuMemcpyDtoDAsync", (1, 2, 6, 0), 6, (1, 2, 3, 0)),
        ("write_rows", (1, ROWS, bytes(20), 0), 20, (1, Rows(2, 4, 8), bytes(8), 0)),
        ("read_rows", (1, ROWS, 0), 20, (1, Rows(2, 4, 8), 0)),
        ("copy_rows", (1, ROWS, 2, ROWS, 0), 20, (1, Rows(2, 4, 8), 2, Rows(2, 4, 8), 0)),
    ],
)
def test_half_of_each_copy_is_known(
    method: str, args: tuple[Any, ...], size: int, first: tuple[Any, ...]
) -> None:
    assert copied(method, args) == size
    assert half(method, args) == first
