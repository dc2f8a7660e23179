"""The example's program: options, losses file, progress bar and result line."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import train as program
from training import train

from outlast.server.drivers.emulated import EmulatedDriver

STEPS = 25


class CountingDriver(EmulatedDriver):
    """A device that has the statistics of `outlast.shim.driver`."""

    def statistics(self) -> dict[str, Any]:
        return {"replayed_calls": 4, "reconnects": 2, "stalls_s": [0.5]}


@pytest.fixture(scope="module")
def device() -> Iterator[Any]:
    driver = CountingDriver()
    yield driver
    driver.close()


@pytest.fixture(autouse=True)
def cuda(device: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(program, "cuda", device)
    return device


def losses_of(text: str) -> list[float]:
    records = [json.loads(line) for line in text.splitlines() if "loss" in json.loads(line)]
    assert [record["step"] for record in records] == list(range(STEPS))
    return [float.fromhex(record["loss"]) for record in records]


def test_losses_file_holds_the_bits_of_every_loss(cuda: Any, tmp_path: Path) -> None:
    path = tmp_path / "losses.jsonl"
    code = program.main(["--steps", str(STEPS), "--seed", "5", "--losses", str(path), "--quiet"])
    written = np.array(losses_of(path.read_text()), np.float32)
    assert code == 0
    assert written.tobytes() == train(cuda, steps=STEPS, seed=5).losses.tobytes()


def test_last_line_is_the_result_with_what_the_session_went_through(
    capfd: pytest.CaptureFixture[str],
) -> None:
    program.main(["--steps", str(STEPS), "--quiet", "--losses", "-"])
    out, err = capfd.readouterr()
    *losses, last = out.splitlines()
    result = json.loads(last)
    assert len(losses_of("\n".join(losses))) == STEPS
    assert result["steps"] == STEPS
    assert 0 <= result["accuracy"] <= 1
    assert result["final_loss"] == float.fromhex(json.loads(losses[-1])["loss"])
    assert (result["replayed_calls"], result["reconnects"]) == (4, 2)
    assert err == ""


def test_progress_bar_moves_without_tqdm(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(program, "tqdm", None)
    program.main(["--steps", str(STEPS)])
    bars = capfd.readouterr().err.split("\r")
    assert [bar.split("] ")[1].split()[0] for bar in bars[1:]] == ["10/25", "20/25", "25/25"]
    assert bars[-1].startswith(f"[{'#' * program.BAR_WIDTH}] 25/25 loss ")


@pytest.mark.parametrize("steps", ["0", "-3", "many"])
def test_steps_must_be_a_positive_number(
    steps: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        program.main(["--steps", steps])
    assert end.value.code == 2
    assert "--steps" in capsys.readouterr().err


def test_losses_are_flushed_as_they_come() -> None:
    file = io.StringIO()
    program.reporter(None, file)(3, np.array([0.5, 0.25], np.float32))
    assert file.getvalue() == (
        '{"step": 3, "loss": "0x1.0000000000000p-1"}\n{"step": 4, "loss": "0x1.0000000000000p-2"}\n'
    )
