"""How long a program stands still while its server is stopped or its worker killed.

Run ``python recovery.py``: it starts a server of its own and prints one JSON line a figure.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from harness import Server, calls_during, longest, report, report_replacement  # noqa: E402

import outlast.shim.driver as cuda  # noqa: E402
from outlast.errors import KeeperError  # noqa: E402
from outlast.server.drivers.cuda import CudaDriver  # noqa: E402
from outlast.server.keeper.client import Keeper  # noqa: E402

MIB, GIB = 1 << 20, 1 << 30
SIZES = (64 * MIB, 1 * GIB, 4 * GIB, 16 * GIB)
#: Memory that is handed from server to server; nothing of it is copied.
HANDED_OVER = (1 * GIB, 8 * GIB, 64 * GIB)
DEADLINE = 120.0  # seconds
#: How long it takes until there is a spare worker again.
SPARE = 4.0  # seconds
#: Beside the memory of a session's server, which may be on this host too.
BASE = 0x1200_0000_0000


def ok(answer: tuple[Any, ...]) -> Any:
    """Return the value of a call that must have succeeded."""
    if int(answer[0]):
        raise RuntimeError(f"CUDA error {int(answer[0])}: {cuda.last_error()}")
    return answer[1] if len(answer) > 1 else None


def regions() -> None:
    """Report what the device gives and takes, without a store behind it."""
    import numpy as np

    driver = CudaDriver(base=BASE)
    context = driver.cuDevicePrimaryCtxRetain(0)[1]
    driver.cuCtxSetCurrent(context)
    driver.cuMemAlloc(2 * GIB)
    (region,) = driver.regions()
    for name, kind in (("fresh", np.empty), ("used", np.ones)):
        data = kind(2 * GIB, np.uint8)
        began = time.perf_counter()
        driver.read(region, 0, data.data)
        gigabytes = region.size / (time.perf_counter() - began) / 1e9
        report(f"device memory read into {name} memory", gigabytes, "GB/s", by="outlast")
    began = time.perf_counter()
    driver.write(region, 0, data.data)
    gigabytes = region.size / (time.perf_counter() - began) / 1e9
    report("device memory written", gigabytes, "GB/s", by="outlast")
    driver.close()


def saving(provider: str, folder: Path) -> None:
    """Report stalls and rates of a session of each size."""
    grace = ["--grace", str(DEADLINE)]
    server = Server(folder / "state", "--provider", provider, *grace, device="cuda")
    server.start()
    os.environ["LUPINE_SERVER"] = server.endpoint
    os.environ["LUPINE_STATE_DIR"] = str(folder / "client")
    try:
        ok(cuda.cuInit(0))
        ok(cuda.cuCtxSetCurrent(ok(cuda.cuDevicePrimaryCtxRetain(ok(cuda.cuDeviceGet(0))))))
        for measure, sizes in (
            *((_stalls, SIZES), (_hand_over, HANDED_OVER), (_take_over, HANDED_OVER)),
            (_kill_idle, HANDED_OVER),
        ):
            for size in sizes:
                memory = ok(cuda.cuMemAlloc(size))
                ok(cuda.cuMemsetD32(memory, size % 251, size // 4))
                ok(cuda.cuCtxSynchronize())
                measure(server, size)
                _check(memory, size)
                ok(cuda.cuMemFree(memory))
        _replace_gateway(server)
        cuda.close(end=True)
    finally:
        server.stop()


class Peak:
    """How much memory processes take at most, beyond what they have at first."""

    def __init__(self, pids: list[int]) -> None:
        self._files = [Path(f"/proc/{pid}/status") for pid in pids]
        self._first = self._resident()
        self._most = self._first
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    @property
    def grown(self) -> int:
        """Bytes by which they have grown, in all."""
        return self._most - self._first

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(0.02):
            self._most = max(self._most, self._resident())

    def _resident(self) -> int:
        total = 0
        for file in self._files:
            with contextlib.suppress(OSError):  # it is gone
                found = re.search(r"^VmRSS:\s+(\d+) kB", file.read_text(), re.MULTILINE)
                total += int(found[1]) << 10 if found else 0
        return total


def _stalls(server: Server, size: int) -> None:
    name = f"{size / GIB:g} GiB"
    began = time.perf_counter()
    with Peak(server.children()) as saving:
        server.stop(DEADLINE)
    saved = time.perf_counter() - began
    report(f"save and exit at SIGTERM, {name}", size / saved / 1e9, "GB/s", by="outlast")
    report(f"host memory that the save took, {name}", saving.grown / MIB, "MiB", by="outlast")
    server.start()
    ok(cuda.cuCtxSynchronize())
    report(f"planned restart, {name}: stall", time.perf_counter() - began, "s", by="outlast")
    workers = server.children()
    began = time.perf_counter()
    for pid in workers:
        subprocess.run(["kill", "-9", str(pid)], check=False)
    ok(cuda.cuCtxSynchronize())
    stall = time.perf_counter() - began
    report(f"worker killed, {name}: stall", stall, "s", by="outlast")
    report(f"restore in a new worker, {name}", size / stall / 1e9, "GB/s", by="outlast")


def _hand_over(server: Server, size: int) -> None:
    name = f"{size / GIB:g} GiB"
    began = time.perf_counter()
    server.stop(DEADLINE, signal.SIGUSR2)
    report(f"hand over and exit, {name}", time.perf_counter() - began, "s", by="outlast")
    server.start()
    report(f"handed over, {name}: until ready", time.perf_counter() - began, "s", by="outlast")
    ok(cuda.cuCtxSynchronize())
    stall = time.perf_counter() - began
    report(f"restart that copies nothing, {name}: stall", stall, "s", by="outlast")


def _kill_idle(server: Server, size: int) -> None:
    """Kill the worker of a session that has been idle for a while."""
    keeper = Keeper(server.state)
    end = time.monotonic() + DEADLINE
    while not (held := _held(keeper)).get("sealed"):
        if time.monotonic() > end:
            raise RuntimeError(f"the session is not sealed: {held}")
        time.sleep(0.05)
    time.sleep(SPARE)
    began = time.perf_counter()
    os.kill(held["holder"], signal.SIGKILL)
    ok(cuda.cuCtxSynchronize())
    stall = time.perf_counter() - began
    found = _held(keeper)
    keeper.close()
    if found.get("token", 0) <= held["token"]:
        raise RuntimeError(f"the session does not go on from the keeper: {found}")
    report(f"worker killed while idle, {size / GIB:g} GiB: stall", stall, "s", by="outlast")


def _held(keeper: Keeper) -> dict[str, Any]:
    """Return what the keeper has of the only session."""
    try:
        return next(iter(keeper.holdings()), {})
    except KeeperError:
        return {}


def _take_over(server: Server, size: int) -> None:
    report_replacement(server, lambda: ok(cuda.cuCtxSynchronize()), f"{size / GIB:g} GiB")


def _replace_gateway(server: Server) -> None:
    """Call all the time while the gateway is replaced; the longest call is the stall."""
    server.stop(DEADLINE, signal.SIGUSR1)
    began = time.perf_counter()
    lost, found = longest(calls_during(lambda: ok(cuda.cuCtxSynchronize()), server.start))
    report("new gateway: until ready", time.perf_counter() - began, "s", by="outlast")
    report("new gateway: longest call meanwhile", found - lost, "s", by="outlast")


def _check(memory: int, size: int) -> None:
    """Fail unless the memory holds what was written, at both ends."""
    word = ctypes.c_uint32()
    for address in (memory, memory + size - 4):
        ok(cuda.cuMemcpyDtoH(ctypes.addressof(word), address, 4))
        if word.value != size % 251:
            raise RuntimeError(f"{word.value} at {address:#x} instead of {size % 251}")


def main() -> None:
    """Take the figures."""
    regions()
    with tempfile.TemporaryDirectory() as folder:
        saving("directory", Path(folder))


if __name__ == "__main__":
    main()
