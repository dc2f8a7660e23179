"""Large copies through a session against plain ZeroMQ, as JSON lines.

Machines are noisy, so each round measures everything once, and what counts are the ratios
within a round and the processor time. Three sessions do it one after the other: one whose log
has room for all copies, one with the usual limit, and one whose log spills all the time. A
fourth does not touch memory ahead.

A copy passes four threads, each beside the others: the program's, libzmq's in the client and in
the worker, and the worker's own. The processor time of the busiest one bounds the speed where
there are processors for all.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import zmq
from harness import Server, report, session

import outlast.shim.driver as remote
from outlast.shim import slabs

MIB = 1 << 20
AHEAD_PROCESSORS = slabs.AHEAD_PROCESSORS
SINK = """
import sys, zmq
socket = zmq.Context().socket(zmq.PAIR)
print(socket.bind_to_random_port("tcp://127.0.0.1"), flush=True)
left = 0
while True:
    frames = socket.recv_multipart(copy=False)
    if len(frames) == 1:
        if not len(frames[0]):
            break
        left = int(frames[0].bytes)
    else:
        left -= 1
        if not left:
            socket.send(b"all")
"""
#: The log's limit in MiB, by the name of the session; None leaves it alone.
LIMITS = {"roomy log": 1 << 16, "usual log": None, "nothing ahead": None, "spilling log": 64}
STAGES = ("client", "client_zmq", "worker_zmq", "worker")


class Plain:
    """A process that takes frames of 1 MiB by plain ZeroMQ and throws them away."""

    def __init__(self) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-c", SINK], stdout=subprocess.PIPE, text=True
        )
        assert self._child.stdout is not None
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.connect(f"tcp://127.0.0.1:{self._child.stdout.readline().strip()}")

    def send(self, data: memoryview) -> float:
        """Return the GB/s at which the data goes over, from where it lies."""
        start = time.perf_counter()
        self._socket.send(str(len(data) // MIB).encode())
        for offset in range(0, len(data), MIB):
            self._socket.send_multipart([b"head", data[offset : offset + MIB]], copy=False)
        self._socket.recv()
        return len(data) / (time.perf_counter() - start) / 1e9

    def close(self) -> None:
        """End the process."""
        self._socket.send(b"")
        self._child.wait(10)
        assert self._child.stdout is not None
        self._child.stdout.close()
        self._context.destroy(linger=0)


class Copies:
    """Copies of one session, with what they take."""

    def __init__(self, server: Server, size: int) -> None:
        self._server = server
        self._size = size
        assert remote.cuInit(0)[0] == 0
        remote.cuCtxSetCurrent(remote.cuDevicePrimaryCtxRetain(0)[1])
        self._pointer = remote.cuMemAlloc(size)[1]
        self._source = memoryview(bytes(range(256)) * (size // 256))
        self._target = bytearray(size)

    def to_device(self) -> Any:
        """Copy everything, and wait until it is there."""
        result = remote.cuMemcpyHtoD(self._pointer, self._source, self._size)
        return remote.cuCtxSynchronize()[0] or result[0]

    def to_host(self) -> Any:
        """Copy everything back."""
        return remote.cuMemcpyDtoH(self._target, self._pointer, self._size)[0]

    def measure(self, copy: Callable[[], Any]) -> tuple[float, list[float]]:
        """Return GB/s, and the processor seconds per GB of client, workers and `STAGES`."""
        workers = self._server.children()
        before = _processor_times(workers)
        start = time.perf_counter()
        assert not copy()
        duration = time.perf_counter() - start
        gigabytes = self._size / 1e9
        spent = [
            (after - earlier) / gigabytes
            for after, earlier in zip(_processor_times(workers), before, strict=True)
        ]
        return gigabytes / duration, spent


def _processor_times(workers: list[int]) -> list[float]:
    client = _threads(os.getpid())
    others = [_threads(pid) for pid in workers]
    stages = (client[0], client[1], sum(o[1] for o in others), sum(o[0] for o in others))
    return [client[2], sum(other[2] for other in others), *stages]


def _threads(pid: int) -> tuple[float, float, float]:
    """Return the processor seconds of a process's main thread, of libzmq's, and of all."""
    main = zmq_ = total = 0.0
    for task in Path(f"/proc/{pid}/task").iterdir():
        # In nanoseconds, where process times are counted in hundredths of a second.
        spent = int((task / "schedstat").read_text().split()[0]) / 1e9
        total += spent
        if task.name == str(pid):
            main = spent
        elif (task / "comm").read_text().startswith("ZMQbg/IO"):
            zmq_ += spent
    return main, zmq_, total


def run(name: str, limit: int | None, size: int, rounds: int, device: str) -> None:
    """Print what copies of a new session cost."""
    os.environ.pop("LUPINE_REPLAY_LIMIT", None)
    os.environ["LUPINE_REPLAY_HARD_LIMIT"] = str(MIB << 17)
    if limit is not None:
        os.environ["LUPINE_REPLAY_LIMIT"] = str(limit * MIB)
    plain = Plain()
    with session(device=device) as server:
        remote.use_link(None)
        if name == "nothing ahead":
            slabs.AHEAD_PROCESSORS = 1 << 16
        copies = Copies(server, size)
        source = memoryview(bytes(size))
        kinds = {"to the device": copies.to_device, "to the host": copies.to_host}
        samples: dict[str, list[tuple[float, ...]]] = {kind: [] for kind in kinds}
        for _ in range(rounds):
            for kind, copy in kinds.items():
                reference = plain.send(source)
                rate, spent = copies.measure(copy)
                samples[kind].append((rate, rate / reference, *spent))
        for kind, rows in samples.items():
            best = max(row[0] for row in rows)
            columns = zip(*rows, strict=True)
            _, ratio, client, worker, *stages = (statistics.median(c) for c in columns)
            busiest = max(range(len(stages)), key=lambda index: stages[index])
            report(
                f"copy of {size // MIB} MiB {kind}, {name}",
                best,
                "GB/s",
                by="outlast",
                over_plain=round(ratio, 3),
                client_cpu_s_per_gb=round(client, 3),
                worker_cpu_s_per_gb=round(worker, 3),
                busiest=STAGES[busiest],
                **{stage: round(value, 3) for stage, value in zip(STAGES, stages, strict=True)},
            )
        remote.close(end=True)
    plain.close()
    slabs.AHEAD_PROCESSORS = AHEAD_PROCESSORS


def main() -> None:
    """Run the benchmarks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=256, help="MiB")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="emulated")
    options = parser.parse_args()
    for name, limit in LIMITS.items():
        run(name, limit, options.size * MIB, options.rounds, options.device)


if __name__ == "__main__":
    main()
