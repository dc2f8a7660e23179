"""One point of the soak: a program, a server, faults at places that a seed decides.

At the end the program must have exited with 0 and the result of an undisturbed run, the
server must stop with everything saved, no process may be left and no session parked.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from helpers.faults import Fault, inject, stop
from helpers.keeper import held, keeper_pids
from helpers.server_process import ServerProcess, kill
from helpers.soak_client import NAMES, SoakClient

from outlast.session.database import open_engine
from outlast.session.rows import SessionState
from outlast.session.store import Store

#: Longest that a program may take with all its faults.
DEADLINE = 90.0  # seconds
#: Seeds that programs run with: each needs one undisturbed run to compare with.
PROGRAM_SEEDS = 3
#: Checkpoint intervals to draw from (seconds, 0: none).
INTERVALS = (0.3, 0.3, 0.3, 0.3, 0.1, 1.0, 0.0)
#: Environment variable that marks every process of a point.
MARK = "SOAK_POINT"
LEFT_DEADLINE = 5.0  # seconds
#: When sessions are sealed that stand idle.
IDLE_SEAL = 0.05  # seconds
#: How long a session that stands still is waited for until it is sealed.
REST_DEADLINE = 3.0  # seconds
#: Faults that may befall a session that stands still: they do not wait for its program.
WHILE_IDLE = frozenset(
    {
        *(Fault.RESTART, Fault.KILL_WORKER, Fault.KILL_GATEWAY, Fault.KILL_ALL),
        *(Fault.LEAVE, Fault.HAND_OVER, Fault.ROT),
    }
)


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """A fault and its place: a share of the program's steps, or soon after the one before."""

    fault: Fault
    share: float | None
    delay: float
    #: The program stands still before.
    idle: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that a seed decides about a point."""

    seed: int
    program: str
    program_seed: int
    interval: float
    faults: tuple[PlannedFault, ...]

    @classmethod
    def of(cls, seed: int, program: str = "") -> Plan:
        """Draw the plan of a seed; ``program`` overrules its choice of program."""
        chance = random.Random(seed)
        name = chance.choice(NAMES)
        program_seed = chance.randrange(PROGRAM_SEEDS)
        interval = chance.choice(INTERVALS)
        places = sorted(chance.uniform(0.0, 0.95) for _ in range(chance.randint(1, 4)))
        faults: list[PlannedFault] = []
        for number, share in enumerate(places):
            soon = number > 0 and chance.random() < 0.4
            delay = chance.uniform(0.0, 0.3) if soon else chance.uniform(0.0, 0.02)
            fault = chance.choice(list(Fault))
            if fault is Fault.ROT and any(planned.fault is fault for planned in faults):
                fault = Fault.KILL_ALL  # two epochs are kept: a second loss may be one too many
            faults.append(PlannedFault(fault, None if soon else share, delay))
        faults = [
            replace(planned, idle=chance.random() < 0.4 and planned.fault in WHILE_IDLE)
            for planned in faults
        ]
        return cls(seed, program or name, program_seed, interval, tuple(faults))


@dataclass(slots=True)
class Outcome:
    """What became of a point."""

    plan: Plan
    problems: list[str] = field(default_factory=list)
    #: Faults that happened, with the step at which they did.
    faults: list[dict[str, Any]] = field(default_factory=list)
    statistics: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    def row(self) -> dict[str, Any]:
        """Return the JSON line of this point."""
        return {
            "seed": self.plan.seed,
            "ok": not self.problems,
            "program": self.plan.program,
            "program_seed": self.plan.program_seed,
            "checkpoint_interval": self.plan.interval,
            "faults": self.faults,
            **self.statistics,
            "seconds": round(self.seconds, 2),
            **({"problems": self.problems} if self.problems else {}),
        }


class Point:
    """Runs one plan.

    Parameters
    ----------
    plan : Plan
        What to do.
    folder : Path
        Empty; gets the state, the logs and the program's files.
    arguments : list of str
        More command line for the server.
    database : str
        URL of an empty journal, or nothing for a file in the state folder.
    """

    def __init__(
        self, plan: Plan, folder: Path, arguments: list[str] | None = None, database: str = ""
    ) -> None:
        self.plan = plan
        self.folder = folder
        self.database = database or f"sqlite:///{folder / 'state' / 'journal.db'}"
        self._mark = {MARK: f"{os.getpid()}:{folder}:"}
        interval = ["--checkpoint-interval", str(plan.interval), "--idle-seal", str(IDLE_SEAL)]
        environment = {**self._mark, "OUTLAST_DATABASE": self.database}
        self._server = ServerProcess(folder / "state", [*interval, *(arguments or [])], environment)

    def run(self, expected: dict[str, Any] | None) -> tuple[Outcome, dict[str, Any] | None]:
        """Run the plan; return its outcome and the program's result.

        Parameters
        ----------
        expected : dict or None
            Result of an undisturbed run; None if this is one.
        """
        outcome = Outcome(self.plan)
        begin = time.monotonic()
        result = None
        with self._server as server:
            client = SoakClient(
                self.plan.program,
                server.endpoint,
                self.folder,
                self.plan.program_seed,
                self._mark,
            )
            try:
                self._disturb(client, outcome)
                result = self._end(client, outcome)
            except AssertionError as error:
                outcome.problems.append(str(error)[:2000])
            finally:
                client.close()
            if result is not None and expected is not None and result != expected:
                outcome.problems.append(f"another result: {_difference(result, expected)}")
            if server.process is not None and not outcome.problems:
                try:
                    stop(server)
                except AssertionError as error:
                    outcome.problems.append(f"at the end: {error}")
        outcome.problems += self._left(outcome)
        outcome.seconds = time.monotonic() - begin
        return outcome, result

    def _disturb(self, client: SoakClient, outcome: Outcome) -> None:
        chance = random.Random(f"faults {self.plan.seed}")
        for planned in self.plan.faults:
            if planned.share is not None and not client.await_share(planned.share, DEADLINE):
                return
            time.sleep(planned.delay)
            if client.ended:
                return
            step = client.step
            with client.paused() if planned.idle else contextlib.nullcontext():
                sealed = planned.idle and self._come_to_rest()
                hit = inject(planned.fault, self._server, chance)
            happened = {"fault": planned.fault, "step": step, "hit": hit, "late": client.ended}
            if planned.idle:
                happened["sealed"] = sealed
            outcome.faults.append(happened)

    def _come_to_rest(self) -> bool:
        """Wait until the session is sealed, if it comes to that."""
        state = self._server.state
        return _within(REST_DEADLINE, lambda: bool(held(state, "soak").get("sealed")))

    def _end(self, client: SoakClient, outcome: Outcome) -> dict[str, Any] | None:
        code = client.wait(DEADLINE)
        if code is None:
            outcome.problems.append(f"the program hangs at step {client.step} of {client.total}")
            return None
        if code or client.report is None:
            last = client.errors().strip().splitlines()[-3:]
            outcome.problems.append(f"the program ended with {code}: {' | '.join(last)}")
            return None
        from_keeper = self._server.log_text().count("kept=True")
        outcome.statistics = {**client.report["statistics"], "from_keeper": from_keeper}
        result: dict[str, Any] = client.report["result"]
        return result

    def _left(self, outcome: Outcome) -> list[str]:
        """Name what is left: processes, a parked session, objects that the program gave back."""
        problems = []
        for pid in keeper_pids(self.folder / "state"):
            kill(pid)  # it is there to stay
        if not _within(LEFT_DEADLINE, lambda: not marked_processes(self._mark[MARK])):
            problems.append(f"left: {marked_processes(self._mark[MARK])}")
        engine = open_engine(self.database)
        store = Store(engine)
        try:
            state = store.session("soak").state
            objects = [*store.handles("soak"), *store.allocations("soak")]
        finally:
            store.close()
        # Records on their way from a worker killed at the very end are gone with it.
        lost = any(fault["late"] for fault in outcome.faults) or outcome.problems
        if objects and not lost:
            problems.append(f"the journal still lists {objects[:5]}")
        if state != SessionState.ACTIVE:
            problems.append(f"the session is {state}")
        return problems


def marked_processes(mark: str) -> dict[int, str]:
    """Return the processes whose mark begins with ``mark``: pid and command."""
    wanted = f"{MARK}={mark}".encode()
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            variables = (process / "environ").read_bytes().split(b"\0")
            if any(variable.startswith(wanted) for variable in variables):
                command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                found[int(process.name)] = command
        except OSError:
            continue  # not ours, or gone
    return found


def kill_all_points() -> None:
    """SIGKILL every process of this process's points."""
    for pid in marked_processes(f"{os.getpid()}:"):
        kill(pid)


def _difference(result: dict[str, Any], expected: dict[str, Any]) -> str:
    for key, value in expected.items():
        other = result.get(key)
        if other == value:
            continue
        if isinstance(value, list) and isinstance(other, list):
            pairs = zip(other, value, strict=False)
            at = next((i for i, (a, b) in enumerate(pairs) if a != b), len(other))
            return f"{key}[{at}] of {len(value)}"
        return f"{key} is {other} instead of {value}"
    return "more than expected"


def _within(seconds: float, condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
