"""Several threads at once, as a client program of the soak.

However they interleave, the result is the same: the digest of all buffers at the end.
"""

from __future__ import annotations

import argparse
import os
import queue
import sys
import traceback
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

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
    pool = ThreadPoolExecutor(len(players))
    games = [pool.submit(player.play) for player in players]
    failed = [game for game in wait(games, return_when=FIRST_EXCEPTION).done if game.exception()]
    if failed:
        # The others may wait for what this one will never give them.
        traceback.print_exception(failed[0].exception())
        os._exit(1)
    report.result({"digests": [game.result() for game in games]}, cuda.statistics())
    return 0


if __name__ == "__main__":
    sys.exit(main())
