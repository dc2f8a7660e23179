"""The ``outlast`` command: help, exit codes, and errors in one line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import types

import pytest

import outlast
from outlast import cli
from outlast.config import SERVE_SETTINGS, ServeConfig
from outlast.errors import JournalNewer


@pytest.fixture
def server(monkeypatch) -> types.SimpleNamespace:
    """Put a server in place that only notes its settings, or does what a test wants."""
    seen = types.SimpleNamespace(config=None, outcome=lambda: 0)

    def serve(config: ServeConfig) -> int:
        seen.config = config
        return seen.outcome()

    app = types.ModuleType("outlast.server.app")
    app.serve = serve
    monkeypatch.setitem(sys.modules, "outlast.server.app", app)
    monkeypatch.setattr(cli.log, "configure", lambda level: None)
    return seen


def raising(error: BaseException):
    def raise_it() -> int:
        raise error

    return raise_it


def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "outlast", *arguments],
        env={**os.environ, "COLUMNS": "300", **environ},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_serve_gets_its_settings_and_its_result_is_the_exit_code(server):
    server.outcome = lambda: 3
    code = cli.main(["serve", "--bind", "tcp://127.0.0.1:0", "--relay", "--grace", "2.5"])
    assert code == 3
    assert server.config.bind == "tcp://127.0.0.1:0"
    assert server.config.relay is True
    assert server.config.grace == 2.5


def test_a_flag_wins_over_the_environment(server, monkeypatch):
    monkeypatch.setenv("OUTLAST_DEVICE", "cuda")
    assert cli.main(["serve", "--device", "emulated"]) == 0
    assert server.config.device == "emulated"


def test_a_bad_setting_is_one_line_and_exit_code_2(server, capsys):
    assert cli.main(["serve", "--bind", "tcp://0.0.0.0:14833"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "--bind" in error
    assert "--insecure" in error
    assert server.config is None


def test_a_server_that_fails_is_one_line_and_exit_code_1(server, capsys):
    server.outcome = raising(JournalNewer("the journal at postgresql://u:hunter22@h/n\nis newer"))
    assert cli.main(["serve"]) == 1
    assert capsys.readouterr().err == "outlast: the journal at postgresql://u:***@h/n is newer\n"


def test_ctrl_c_ends_it_without_a_traceback(server, capsys):
    server.outcome = raising(KeyboardInterrupt())
    assert cli.main(["serve"]) == 128 + signal.SIGINT
    assert capsys.readouterr().err == ""


def test_help_shows_every_flag_with_its_variable_and_default():
    done = run("serve", "--help")
    assert done.returncode == 0
    text = " ".join(done.stdout.split())
    for entry in SERVE_SETTINGS.values():
        assert entry.flag in text
        assert f"[{entry.env}; default: {entry.default}]" in text


def test_the_version_is_printed():
    done = run("--version")
    assert (done.returncode, done.stdout) == (0, f"outlast {outlast.__version__}\n")


def test_a_bad_environment_ends_the_process_with_code_2_and_no_traceback():
    done = run("serve", OUTLAST_GRACE="nan")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("outlast: grace from OUTLAST_GRACE: 'nan' cannot be used")
    assert "Traceback" not in done.stderr


def test_a_checkpoint_folder_that_cannot_be_written_is_refused_at_the_start(tmp_path):
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / "epochs"
    bind = ("--bind", "tcp://127.0.0.1:0", "--state", str(tmp_path / "state"))
    done = run("serve", "--device", "emulated", *bind, "--provider", f"directory:{folder}")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith(f"outlast: checkpoints cannot be stored below {folder}: ")
    assert done.stderr.count("\n") == 1
    assert "--provider directory:FOLDER" in done.stderr


@pytest.mark.parametrize("arguments", [(), ("serv",), ("serve", "--bin", "x"), ("serve", "extra")])
def test_arguments_that_do_not_exist_are_exit_code_2(arguments):
    done = run(*arguments)
    assert done.returncode == 2
    assert "usage: outlast" in done.stderr
