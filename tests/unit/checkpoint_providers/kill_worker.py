"""Run saves in forked children that are killed on the way.

Each line on stdin is a job, each line on stdout how it ended. A process of its own, so that
the process that forks has a single thread.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

from outlast.checkpoint_providers.directory import DirectoryProvider
from outlast.checkpoint_providers.samples import regions_of, snapshot_of
from outlast.checkpoint_providers.wrappers import FaultRule, FaultyProvider

#: Seven writes, two chunks.
SIZES = (3, 5 << 20, 1, (1 << 20) + 11)
TRACED = ("directory.py", "storage.py", "writer.py")


class LineCounter:
    """Counts the lines that run in the provider's files; kills the process at one of them."""

    def __init__(self, fatal: int) -> None:
        self.fatal = fatal
        self.count = 0

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.endswith(TRACED):
            return None
        if event == "line":
            self.count += 1
            if self.count == self.fatal:
                os.kill(os.getpid(), signal.SIGKILL)
        return self


def save(root: Path, job: dict[str, Any]) -> int:
    rules = [FaultRule.parse(job["rule"])] if "rule" in job else []
    provider = FaultyProvider(DirectoryProvider(root), rules)
    seq = job["seq"]
    snapshot = snapshot_of(seq=seq, token=job["token"], regions=regions_of(seq, SIZES))
    counter = LineCounter(job.get("line", 0))
    if "line" in job:
        sys.settrace(counter)
    provider.save(snapshot)
    sys.settrace(None)
    return counter.count


def run(root: Path, job: dict[str, Any]) -> dict[str, int]:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, str(save(root, job)).encode())
        os._exit(0)
    os.close(writing)
    if "after" in job:
        time.sleep(job["after"])
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    lines = os.read(reading, 100)
    os.close(reading)
    return {"exit": os.waitstatus_to_exitcode(status), "lines": int(lines or 0)}


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(run(Path(sys.argv[1]), json.loads(line))), flush=True)
