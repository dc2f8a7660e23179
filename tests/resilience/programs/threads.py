"""Several threads at once, as a client program of the soak.

However they interleave, the result is the same: the digest of all buffers at the end.
"""

from __future__ import annotations

import argparse
import queue
import sys

from device_buffers import Buffer, check
from player import Player
from report import Report

import outlast.shim.driver as cuda


def main() -> int:
    """Run all players; the last line is the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=800, help="rounds of all threads together")
    parser.add_argument("--threads", type=int, default=4)
    options = parser.parse_args()
    rounds = options.steps // options.threads
    report = Report(rounds * options.threads)
    check(cuda.cuInit(0))
    boxes: list[queue.Queue[Buffer]] = [queue.Queue() for _ in range(options.threads)]
    players = [
        Player(n, options.seed, rounds, report, boxes[n], boxes[(n + 1) % len(boxes)])
        for n in range(options.threads)
    ]
    for player in players:
        player.start()
    while alive := [player for player in players if player.is_alive()]:
        alive[0].join(0.1)
        for player in players:
            if player.error is not None:
                raise player.error
    for player in players:
        if player.error is not None:
            raise player.error
    report.result({"digests": [player.digest for player in players]}, cuda.statistics())
    return 0


if __name__ == "__main__":
    sys.exit(main())
