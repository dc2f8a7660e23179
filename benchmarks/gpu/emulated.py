"""The emulated device's session figures on two cores of this machine, for comparison.

Run ``taskset -c 0,1 python emulated.py``. Prints JSON lines.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from bench_session import echo_us, prepare, queued_launches  # noqa: E402
from harness import median_us, report, session  # noqa: E402

import outlast.shim.driver as remote  # noqa: E402

LAUNCHES = 100_000
REPEAT = 3_000


def main() -> None:
    """Take the figures."""
    with session():
        function, stream = prepare(remote)
        queued_launches(remote, function, stream, LAUNCHES // 10)
        rate = max(queued_launches(remote, function, stream, LAUNCHES) for _ in range(3))
        report("queued launches", rate, "1/s", by="emulated")
        sync = median_us(lambda: remote.cuStreamSynchronize(stream), REPEAT)
        echo = echo_us(REPEAT)
        report("idle cuStreamSynchronize", sync, "us", by="emulated")
        report("bare ZeroMQ echo", echo, "us", by="emulated")
        remote.close(end=True)


if __name__ == "__main__":
    main()
