"""A thousand random losses under programs that count: nothing is done twice, nothing is left out.

Requests, replies and messages of the handshake are lost, each with its connection; now and then
the server is killed together with a reply, after it has done the call and before anybody knows.
"""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from helpers.broken_link import BrokenLink, Fate, Way
from helpers.client_program import ClientProgram
from helpers.kernels import PTX
from helpers.server_process import ServerProcess, kill

from outlast.session.schema import Kind

LOSSES = 1000
PROGRAMS = 3
#: Of this many losses one takes the server with it, and another one the worker.
KILL_EVERY = 200
#: Share of the messages that are lost.
CALLS_LOST, OTHERS_LOST = 0.2, 0.03
#: Replies on a link after a kill before it is disturbed again.
CALM = 3
DEADLINE = 150.0  # seconds

#: Two threads that each launch ``counter += 1``, allocate, copy, free and make streams.
COUNTING = f"""
import json, random

begin()
context = check(cuda.cuCtxGetCurrent())
module = check(cuda.cuModuleLoadData({PTX.encode()!r} + b"\\0"))
increment = check(cuda.cuModuleGetFunction(module, b"increment"))
counters = [check(cuda.cuMemAlloc(4)) for _ in range(2)]
for counter in counters:
    check(cuda.cuMemsetD32(counter, 0, 1))
free = cuda.cuMemGetInfo()[1]
successes, stop = [0, 0], threading.Event()

def work(number):
    check(cuda.cuCtxSetCurrent(context))
    dice, counter = random.Random(number), counters[number]
    while not stop.is_set():
        for _ in range(dice.randrange(1, 20)):
            check(cuda.cuLaunchKernel(
                increment, 1, 1, 1, 1, 1, 1, 0, 0, ((counter,), (ctypes.c_void_p,)), 0))
            successes[number] += 1
        data = np.frombuffer(dice.randbytes(4 * dice.randrange(1, 5000)), np.int32)
        address = check(cuda.cuMemAlloc(data.nbytes))
        stream = check(cuda.cuStreamCreate(0))
        check(cuda.cuMemcpyHtoD(address, data.ctypes.data, data.nbytes))
        assert np.array_equal(read(address, len(data)), data)
        check(cuda.cuMemFree(address))
        check(cuda.cuStreamDestroy(stream))
        assert read(counter)[0] == successes[number]

failures = []
def run(number):
    try:
        work(number)
    except BaseException as error:
        failures.append(repr(error))

threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
for thread in threads:
    thread.start()
say("counting")
sys.stdin.readline()
stop.set()
for thread in threads:
    thread.join()
say(json.dumps({{
    "failures": failures,
    "successes": successes,
    "counters": [int(read(counter)[0]) for counter in counters],
    "leaked": free - cuda.cuMemGetInfo()[1],
    "reconnects": cuda.statistics()["reconnects"],
}}))
"""


class Losses:
    """A thousand losses on the links of several programs, and the kills that go with some of them.

    Parameters
    ----------
    server : ServerProcess
        What is killed; whoever is in `wait` starts it again.
    count : int
        After so many losses everything passes.
    """

    def __init__(self, server: ServerProcess, count: int) -> None:
        self.lost: Counter[str] = Counter()
        self.server_kills = self.worker_kills = 0
        self._server = server
        self._count = count
        self._dice = random.Random(7)
        self._changed = threading.Condition()
        self._down = False

    def wait(self) -> None:
        """Wait until all have happened; start the server as often as it is killed."""
        while True:
            with self._changed:
                assert self._changed.wait_for(lambda: self._down or self._over, DEADLINE), self.lost
                if not self._down:
                    return
            self._server.start()
            with self._changed:
                self._down = False

    def decide(self, kind: Kind, calm: bool) -> Fate:
        """Decide about a message; on a link that is ``calm`` only the handshake is in danger."""
        calls = kind in (Kind.CALLS, Kind.REPLIES)
        share = CALLS_LOST if calls else OTHERS_LOST
        with self._changed:
            if self._down or self._over or (calm and calls) or self._dice.random() > share:
                return Fate.PASS
            self.lost[kind.name] += 1
            if kind is Kind.REPLIES:
                self._kill(self.lost.total())
            self._changed.notify()
            return Fate.LOSE

    @property
    def kills(self) -> int:
        """How many processes of sessions have been killed."""
        return self.server_kills + self.worker_kills

    @property
    def _over(self) -> bool:
        return self.lost.total() >= self._count

    def _kill(self, number: int) -> None:
        if self.server_kills < number // KILL_EVERY:
            self.server_kills += 1
            self._down = True
            self._server.kill()
        elif self.worker_kills < (number + KILL_EVERY // 2) // KILL_EVERY:
            self.worker_kills += 1
            for pid in self._server.session_workers():
                kill(pid)


class LinkLosses:
    """The losses of one program's link.

    After a kill its calls pass until some replies have come: what is replayed then is many
    messages, of which no connection would bring more than a few.
    """

    def __init__(self, losses: Losses) -> None:
        self._losses = losses
        self._kills = 0
        self._calm = 0

    def __call__(self, way: Way, kind: Kind | None) -> Fate:
        if self._kills != self._losses.kills:
            self._kills = self._losses.kills
            self._calm = CALM
        if kind is None:
            return Fate.PASS
        fate = self._losses.decide(kind, self._calm > 0)
        if kind is Kind.REPLIES:
            self._calm -= 1
        return fate


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "state", ["--checkpoint-interval", "2"]) as server:
        yield server


def count_under(losses: Losses, server: ServerProcess, folder: Path) -> list[dict[str, Any]]:
    """Have programs count until all losses have happened; return what they report."""
    with ExitStack() as ends:
        links = [ends.enter_context(BrokenLink(server.endpoint)) for _ in range(PROGRAMS)]
        programs = [
            ends.enter_context(
                ClientProgram(COUNTING, link.endpoint, folder, f"counts-{n}", LUPINE_RELAY="1")
            )
            for n, link in enumerate(links)
        ]
        for program in programs:
            assert program.expect() == "counting"
        for link in links:
            link.rule = LinkLosses(losses)
        losses.wait()
        for program in programs:
            program.tell()
        return [json.loads(program.expect(DEADLINE)) for program in programs]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_thousand_random_losses_count_right(server: ServerProcess, tmp_path: Path) -> None:
    """C3: the final counter equals the number of successful launches, and no memory is lost."""
    losses = Losses(server, LOSSES)
    reports = count_under(losses, server, tmp_path / "client")
    for report in reports:
        assert report["failures"] == []
        assert report["counters"] == report["successes"]
        assert report["leaked"] == 0
    assert losses.lost.total() == LOSSES
    assert losses.lost["CALLS"] > LOSSES / 5
    assert losses.lost["REPLIES"] > LOSSES / 5
    # The last one is due with the last loss, if that is a reply.
    assert losses.server_kills >= LOSSES // KILL_EVERY - 1
    assert losses.worker_kills >= LOSSES // KILL_EVERY - 1
    # Several may be lost on the way to one attachment.
    assert sum(report["reconnects"] for report in reports) > LOSSES / 4
