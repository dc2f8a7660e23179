"""The example's training, whatever its server goes through: its losses are the same to the bit."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from helpers.faults import Fault, inject
from helpers.keeper import keeper_pids
from helpers.server_process import ServerProcess, kill

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "resume_training"
sys.path.insert(0, str(EXAMPLE))

from observer import ObservedTraining, Run  # noqa: E402

#: A step takes a third of a millisecond on a GPU and some of them on the emulated device.
STEPS = {"cuda": 6000, "emulated": 500}
DEADLINE = 60.0  # seconds
#: Faults that a program which is attached to its worker directly does not notice.
UNNOTICED = (Fault.LEAVE, Fault.KILL_GATEWAY)
#: It may have ended before the next server takes its place.
PREPARED = (*UNNOTICED, Fault.TAKE_OVER)


@contextmanager
def training(server: ServerProcess, folder: Path, steps: int) -> Iterator[ObservedTraining]:
    """Run the example in a session of a server."""
    options = ["--steps", str(steps)]
    started = ObservedTraining(server.endpoint, "train", options, folder / "training.log")
    try:
        yield started
    finally:
        started.close()


@contextmanager
def saving_server(folder: Path, device: str) -> Iterator[ServerProcess]:
    """A server that takes epochs while the training goes on."""
    state = folder / "state"
    arguments = ["--checkpoint-interval", "0.3"]
    with ServerProcess(state, arguments, {"OUTLAST_DEVICE": device}) as started:
        yield started
    for pid in keeper_pids(state):
        kill(pid)


@pytest.fixture(scope="module")
def steps(device: str) -> int:
    return STEPS[device]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, device: str, steps: int) -> Run:
    """The same training with nothing in its way."""
    folder = tmp_path_factory.mktemp("undisturbed")
    with saving_server(folder, device) as server, training(server, folder, steps) as started:
        run = started.finish(DEADLINE)
    assert len(run.losses) == steps
    assert run.result["reconnects"] == 0
    return run


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "fault",
    [
        *(Fault.RESTART, Fault.KILL_WORKER, Fault.KILL_ALL),
        *(Fault.HAND_OVER, Fault.TAKE_OVER, Fault.LEAVE, Fault.KILL_GATEWAY),
    ],
)
def test_losses_over_a_fault_are_those_of_an_undisturbed_training(
    tmp_path: Path, device: str, steps: int, undisturbed: Run, fault: Fault
) -> None:
    """A1: SIGTERM, SIGKILL of the worker and of all, SIGUSR2 (by hand and by another server),
    SIGUSR1, SIGKILL of the gateway.
    """
    chance = random.Random(1)
    with saving_server(tmp_path, device) as server, training(server, tmp_path, steps) as started:
        # One that goes on meanwhile may be at its end when the next gateway is there.
        for part in (0.2,) if fault in PREPARED else (0.2, 0.5):
            started.wait_for_step(round(part * steps), DEADLINE)
            assert started.step < steps
            assert inject(fault, server, chance)
            if fault not in PREPARED:
                started.wait_for_report_after(time.monotonic(), DEADLINE)
        run = started.finish(DEADLINE)
    assert run.losses == undisturbed.losses
    assert run.result["accuracy"] == undisturbed.result["accuracy"]
    if fault in UNNOTICED:
        assert run.result["reconnects"] == 0
    if fault in (*UNNOTICED, Fault.HAND_OVER, Fault.TAKE_OVER):
        assert run.result["replayed_calls"] == 0
    if fault in (Fault.KILL_WORKER, Fault.KILL_ALL):
        assert run.result["reconnects"] > 0


@pytest.mark.timeout(240)
def test_demo_trains_to_the_same_losses_over_a_stopped_and_a_killed_server(
    tmp_path: Path, device: str
) -> None:
    """SIGTERM, then SIGKILL of the server with all its workers."""
    command = [sys.executable, str(EXAMPLE / "demo.py"), "--device", device]
    command += ["--picture", str(tmp_path / "demo.png")]
    run = subprocess.run(command, capture_output=True, text=True, timeout=220, check=False)
    verdict = json.loads(run.stdout.splitlines()[-1])
    assert run.returncode == 0, (verdict, run.stderr)
    assert verdict["bit_identical"]
    assert verdict["restarts"] == 2
