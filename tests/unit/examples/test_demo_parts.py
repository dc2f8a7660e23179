"""The demo's supervision, comparison and picture, with stand-ins for server and training."""

from __future__ import annotations

import functools
import gc
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import demo
import pytest
from demo import Demo
from matplotlib import image
from observer import ObservedTraining, Report, Run, longest_gap
from picture import draw
from processes import MARK, DemoError, ServerProcess, kill_marked, marked
from verdict import Restart, first_difference, judge

HERE = Path(__file__).resolve().parent
SERVER = (sys.executable, str(HERE / "fake_server.py"))
TRAIN = (sys.executable, str(HERE / "fake_train.py"))
CACHE = type(functools.lru_cache(len))
STEPS = 60
DEADLINE = 20.0  # seconds
RESTARTS = (
    Restart("SIGTERM", 20, began=0.2, ended=1.2, stall=1.004),
    Restart("SIGKILL", 40, began=1.5, ended=3.5, stall=2.0),
)


def run(losses: list[float], accuracy: float = 0.98, **result: Any) -> Run:
    reports = tuple(Report(step / 10, step, loss.hex()) for step, loss in enumerate(losses))
    return Run(reports, {"accuracy": accuracy, "replayed_calls": 3, **result})


@pytest.fixture(scope="module", autouse=True)
def no_open_fonts(nothing_outlives_its_module: None) -> Iterator[None]:
    """Matplotlib keeps its fonts' files open for the life of the process."""
    yield
    for cache in gc.get_objects():
        if isinstance(cache, CACHE) and cache.__module__.startswith("matplotlib"):
            cache.cache_clear()
    gc.collect()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    process = ServerProcess(tmp_path / "state", tmp_path / "server.log", command=SERVER)
    yield process
    process.close()


def test_equal_runs_are_judged_bit_identical() -> None:
    verdict = judge(run([2.0, 1.0]), run([2.0, 1.0]), RESTARTS, steps=2)
    assert verdict.line() == {
        "bit_identical": True,
        "accuracy": 0.98,
        "restarts": 2,
        "replayed_calls": 3,
        "stall_s": [1.0, 2.0],
    }


def test_one_different_bit_is_found_and_named() -> None:
    verdict = judge(run([2.0, 1.0]), run([2.0, 1.0 + 2**-52]), RESTARTS, steps=2)
    assert not verdict.bit_identical
    assert verdict.line()["failures"] == ["the losses differ from step 1 on"]


def test_missing_steps_are_a_failure_even_if_both_runs_miss_them() -> None:
    verdict = judge(run([2.0]), run([2.0]), RESTARTS, steps=2)
    assert len(verdict.failures) == 2


@pytest.mark.parametrize("accuracy", [0.95, 0.5, float("nan")])
def test_accuracy_must_be_above_95_percent(accuracy: float) -> None:
    verdict = judge(run([1.0], accuracy), run([1.0], accuracy), RESTARTS, steps=1)
    assert any("is not above" in failure for failure in verdict.failures)


def test_accuracies_must_agree_and_restarts_be_two() -> None:
    verdict = judge(run([1.0], 0.96), run([1.0], 0.97), RESTARTS[:1], steps=1)
    assert verdict.accuracy == 0.96
    assert len(verdict.failures) == 2


@pytest.mark.parametrize(
    ("left", "right", "index"),
    [("abc", "abc", None), ("abc", "abd", 2), ("ab", "abc", 2), ("", "a", 0), ("", "", None)],
)
def test_first_difference_is_where_text_or_length_part(
    left: str, right: str, index: int | None
) -> None:
    assert first_difference(left, right) == index


def test_stall_is_the_longest_gap_that_ends_after_the_signal() -> None:
    times = [0.0, 5.0, 5.1, 7.1, 7.2]
    assert longest_gap(times, since=5.05) == pytest.approx(2.0)
    assert longest_gap(times, since=9.0) == 0.0


@pytest.mark.parametrize("restarts", [RESTARTS, ()])
def test_picture_is_drawn(tmp_path: Path, restarts: tuple[Restart, ...]) -> None:
    losses = [1 / (step + 1) for step in range(STEPS)]
    path = tmp_path / "demo.png"
    draw(run(losses), run(losses), restarts, path)
    height, width, _ = image.imread(path).shape
    assert (width, height) == (1200, 960)


def test_killing_finds_children_that_left_the_group_and_were_orphaned() -> None:
    mark = f"test-{os.getpid()}"
    orphan = "import subprocess, sys; subprocess.Popen(['sleep', '60'], start_new_session=True)"
    env = {**os.environ, MARK: mark}
    subprocess.run([sys.executable, "-c", orphan], env=env, check=True, timeout=DEADLINE)
    before = marked(mark)
    killed = kill_marked(mark)
    assert len(before) == 1
    assert killed == before
    assert marked(mark) == []


def test_server_comes_back_at_the_port_of_its_first_start(server: ServerProcess) -> None:
    server.start()
    endpoint, pid = server.endpoint, server.pid
    code = server.terminate(DEADLINE)
    server.start()
    assert code == 0
    assert not endpoint.endswith(":0")
    assert server.endpoint == endpoint
    assert server.pid != pid


def test_killing_the_server_leaves_no_worker(server: ServerProcess) -> None:
    server.start()
    killed = server.kill()
    assert len(killed) == 3
    assert server.pid in killed
    assert not any(Path(f"/proc/{pid}/exe").exists() for pid in killed)


@pytest.mark.parametrize(
    ("option", "complaint"),
    [(("--say", "hello"), "said 'hello"), (("--exit-code",), "ended before")],
)
def test_server_that_does_not_get_ready_is_named(
    tmp_path: Path, option: tuple[str, ...], complaint: str
) -> None:
    server = ServerProcess(tmp_path, tmp_path / "server.log", command=(*SERVER, *option))
    try:
        with pytest.raises(DemoError, match=complaint):
            server.start(DEADLINE)
    finally:
        server.close()


def test_server_that_leaves_a_worker_behind_is_named_and_cleaned_up(tmp_path: Path) -> None:
    command = (*SERVER, "--leave-worker")
    server = ServerProcess(tmp_path, tmp_path / "server.log", command=command)
    try:
        server.start(DEADLINE)
        with pytest.raises(DemoError, match="left processes"):
            server.terminate(DEADLINE)
    finally:
        server.close()
    assert len(server.kill()) == 0


def test_training_that_fails_is_named_with_its_exit_code(tmp_path: Path) -> None:
    options = ["--steps", "2", "--seed", "0", "--fail"]
    training = ObservedTraining("tcp://127.0.0.1:1", "s", options, tmp_path / "log", TRAIN)
    try:
        with pytest.raises(DemoError, match="ended with exit code 1"):
            training.finish(DEADLINE)
    finally:
        training.close()
    assert "out of luck" in (tmp_path / "log").read_text()


def test_waiting_for_a_step_that_never_comes_ends_with_the_training(tmp_path: Path) -> None:
    options = ["--steps", "2", "--seed", "0"]
    training = ObservedTraining("tcp://127.0.0.1:1", "s", options, tmp_path / "log", TRAIN)
    try:
        with pytest.raises(DemoError, match="waited for step 3, but it ended"):
            training.wait_for_step(3, DEADLINE)
    finally:
        training.close()


def demonstrate(tmp_path: Path, *, serve: tuple[str, ...] = (), train: tuple[str, ...] = ()) -> Any:
    return Demo(tmp_path, STEPS, serve=(*SERVER, *serve), train=(*TRAIN, *train)).run(
        tmp_path / "demo.png"
    )


def test_demo_stops_and_kills_the_server_and_compares(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    verdict = demonstrate(tmp_path)
    assert verdict.failures == []
    assert verdict.restarts == len(verdict.stall_s) == 2
    assert verdict.replayed_calls == 7
    said = capsys.readouterr().out
    assert said.index("SIGTERM") < said.index("exit code 0") < said.index("SIGKILL")
    assert "3 server processes were killed" in said
    assert (tmp_path / "demo.png").stat().st_size > 10_000


def test_demo_fails_if_the_losses_differ(tmp_path: Path) -> None:
    verdict = demonstrate(tmp_path, train=("--differ-in", "disturbed"))
    assert not verdict.bit_identical
    assert verdict.failures == [f"the losses differ from step {STEPS - 1} on"]


def test_demo_fails_if_the_server_could_not_save(tmp_path: Path) -> None:
    with pytest.raises(DemoError, match="exit code 3, not 0"):
        demonstrate(tmp_path, serve=("--exit-code", "3"))


@pytest.mark.parametrize("failures", [[], ["something"]])
def test_exit_code_and_last_line_tell_the_verdict(
    failures: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    verdict = judge(run([1.0]), run([1.0]), RESTARTS, steps=1)
    verdict.failures += failures
    monkeypatch.setattr(Demo, "run", lambda self, picture: verdict)
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    code = demo.main(["--picture", str(tmp_path / "demo.png")])
    record = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert code == (1 if failures else 0)
    assert record.get("failures", []) == failures


def test_broken_server_gives_exit_code_1_and_shows_its_log(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(self: Demo, picture: Path) -> None:
        (self.folder / "server.log").write_text("it was the disk\n")
        raise DemoError("no server")

    monkeypatch.setattr(Demo, "run", fail)
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    code = demo.main([])
    out, err = capsys.readouterr()
    assert code == 1
    assert json.loads(out) == {"bit_identical": False, "failures": ["no server"]}
    assert "it was the disk" in err


@pytest.mark.parametrize(
    "arguments", [["--steps", "99"], ["--device", "abacus"], ["--picture", "/nowhere/demo.png"]]
)
def test_bad_options_are_refused_before_anything_starts(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        demo.parse(arguments)
    assert end.value.code == 2
    assert arguments[0] in capsys.readouterr().err


def test_demo_without_matplotlib_says_so_and_draws_nothing(tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "sys.modules['matplotlib'] = None\n"
        "import demo, functools\n"
        f"demo.Demo = functools.partial(demo.Demo, serve={SERVER!r}, train={TRAIN!r})\n"
        "sys.exit(demo.main(['--steps', '100']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        cwd=tmp_path,
        timeout=DEADLINE,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "no picture will be drawn without matplotlib: pip install matplotlib" in done.stdout
    assert json.loads(done.stdout.splitlines()[-1])["bit_identical"]
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_ends_the_demo_and_everything_it_started(tmp_path: Path) -> None:
    script = (
        "import sys, demo, functools\n"
        f"demo.Demo = functools.partial(demo.Demo, serve={SERVER!r}, train={TRAIN!r})\n"
        "sys.exit(demo.main(['--steps', '100000']))\n"
    )
    mark = f"ctrl-c-{os.getpid()}"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OWNER": mark}
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
        cwd=tmp_path,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    with process.stdout as stdout, process.stderr as stderr:
        said = [stdout.readline(), stdout.readline()]
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        code = process.wait(DEADLINE)
        complaints = stderr.read()
    left = owned(mark)
    assert complaints == ""
    assert "first training" in said[1]
    assert code == demo.INTERRUPTED
    assert left == []


@pytest.mark.parametrize("number", [1, 2], ids=["server", "training"])
def test_ctrl_c_in_the_start_of_a_process_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    started: list[subprocess.Popen[str]] = []
    start = subprocess.Popen

    def interrupted(*arguments: Any, **options: Any) -> subprocess.Popen[str]:
        process = start(*arguments, **options)
        started.append(process)
        if len(started) == number:
            raise KeyboardInterrupt
        return process

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    with pytest.raises(KeyboardInterrupt):
        demonstrate(tmp_path)
    last = started[-1]
    assert last.stdout is not None
    last.stdout.close()
    assert len(started) == number
    # A training as short as this one may have ended by itself just before.
    assert last.wait(DEADLINE) in (-signal.SIGKILL, 0)


def owned(mark: str) -> list[int]:
    """Return the processes with ``OWNER=mark`` in their environment."""
    text = subprocess.run(
        ["grep", "-slaF", f"OWNER={mark}", *map(str, Path("/proc").glob("[0-9]*/environ"))],
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE,
    ).stdout
    return [int(line.split("/")[2]) for line in text.splitlines()]
