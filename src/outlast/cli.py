"""The ``outlast`` command."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NoReturn

from outlast import __version__, log
from outlast.config import SERVE_SETTINGS, ServeConfig
from outlast.errors import ConfigError, OutlastError
from outlast.settings import Setting

#: What matters to the doctor.
DOCTOR_SETTINGS = (
    *("bind", "insecure", "device", "emulated_devices", "state_dir", "database", "provider"),
    "grace",
)

#: Exit codes beside 0 and what the server itself returns.
FAILED, UNUSABLE, INTERRUPTED = 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code.

    Parameters
    ----------
    argv
        Arguments behind the program's name; those of this process by default.
    """
    arguments = _parser().parse_args(argv)
    try:
        if arguments.command == "journal":
            return _journal(vars(arguments))
        if arguments.command == "keeper":
            return _keeper(vars(arguments))
        if arguments.command == "doctor":
            return _doctor(vars(arguments))
        return _serve(vars(arguments))
    except ConfigError as error:
        return _fail(error, UNUSABLE)
    except OutlastError as error:
        return _fail(error, FAILED)
    except KeyboardInterrupt:
        return INTERRUPTED


def run() -> NoReturn:
    """Run the command and end this process with its exit code.

    All is closed by then. The interpreter's own end would take every module apart, a tenth of a
    second in which the state folder stays locked and the next server waits.
    """
    code = main()
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # there may be none
            stream.flush()
    os._exit(code)


def _serve(flags: Mapping[str, str | None]) -> int:
    config = ServeConfig.resolve(flags)
    log.configure(config.log_level)
    # Late, because the server's libraries take a while to load and `--help` needs none.
    from outlast.server.app import serve

    return serve(config)


def _journal(flags: Mapping[str, str | None]) -> int:
    config = ServeConfig.resolve(flags)
    log.configure(config.log_level)
    from outlast.server import admin

    if flags["action"] == "downgrade":
        print(admin.downgrade(config, str(flags["revision"])))
    elif flags["action"] == "end":
        print(admin.end(config, str(flags["session"])))
    elif flags["action"] == "unpark":
        print(admin.unpark(config, str(flags["session"])))
    else:
        print(admin.sessions(config))
    return 0


def _keeper(flags: Mapping[str, str | None]) -> int:
    config = ServeConfig.resolve(flags)
    log.configure(config.log_level)
    from outlast.server import admin

    print(admin.kept(config))
    return 0


def _doctor(flags: Mapping[str, str | None]) -> int:
    config = ServeConfig.resolve(flags)
    log.configure(config.log_level)
    from outlast.server.doctor.report import report

    return report(config)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="outlast",
        description="Remote CUDA sessions that outlast the server process, the link and the crash.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"outlast {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    serve = commands.add_parser(
        "serve",
        help="run a session server",
        description="Run a session server. It prints 'ready tcp://HOST:PORT' when it accepts "
        "clients, and saves every session on SIGTERM.",
        epilog="A flag wins over its environment variable, that over the default.",
        allow_abbrev=False,
    )
    for name, entry in SERVE_SETTINGS.items():
        _add_flag(serve, name, entry)
    doctor = commands.add_parser(
        "doctor",
        help="say what a server would find here",
        description="Say what a server with these settings would find here: devices, addresses, "
        "port, journal, room and time for checkpoints. The exit code is 1 if it could not run.",
        allow_abbrev=False,
    )
    for name in DOCTOR_SETTINGS:
        _add_flag(doctor, name, SERVE_SETTINGS[name])
    _add_journal(commands)
    _add_keeper(commands)
    return parser


def _add_keeper(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    keeper = commands.add_parser(
        "keeper",
        help="look at the device memory that waits for a server",
        description="Look at the device memory that a server left behind for the next one.",
        allow_abbrev=False,
    )
    actions = keeper.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="list what is kept of which session")
    for name in ("state_dir", "log_level"):
        _add_flag(listing, name, SERVE_SETTINGS[name])


def _add_journal(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    journal = commands.add_parser(
        "journal",
        help="look into the journal, or mend it",
        description="Look into the journal of a server, or mend it.",
        allow_abbrev=False,
    )
    actions = journal.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = actions.add_parser("sessions", help="list the sessions")
    unpark = actions.add_parser("unpark", help="let a parked session be tried again")
    unpark.add_argument("session", metavar="SESSION")
    end = actions.add_parser("end", help="end a session whose program is gone")
    end.add_argument("session", metavar="SESSION")
    downgrade = actions.add_parser(
        "downgrade",
        help="take the journal back to a revision that an older version reads; base empties it",
    )
    downgrade.add_argument("revision", metavar="REVISION")
    for action in (listing, unpark, end, downgrade):
        for name in ("state_dir", "database", "log_level"):
            _add_flag(action, name, SERVE_SETTINGS[name])
    _add_flag(end, "provider", SERVE_SETTINGS["provider"])


def _add_flag(parser: argparse.ArgumentParser, name: str, entry: Setting) -> None:
    text = f"{entry.doc} [{entry.env}; default: {entry.default}]".replace("%", "%%")
    if entry.bare:
        value, bare = entry.metavar, entry.bare
        parser.add_argument(entry.flag, dest=name, nargs="?", const=bare, metavar=value, help=text)
    elif entry.metavar:
        parser.add_argument(entry.flag, dest=name, metavar=entry.metavar, help=text)
    else:
        parser.add_argument(entry.flag, dest=name, action="store_const", const="yes", help=text)


def _fail(error: OutlastError, code: int) -> int:
    text = " ".join(log.redact(str(error)).split())
    print(f"outlast: {text}", file=sys.stderr)
    return code
