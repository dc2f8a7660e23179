"""The ``outlast`` command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence

from outlast import __version__, log
from outlast.config import SERVE_SETTINGS, ServeConfig
from outlast.errors import ConfigError, OutlastError
from outlast.settings import Setting

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
        return _serve(vars(arguments))
    except ConfigError as error:
        return _fail(error, UNUSABLE)
    except OutlastError as error:
        return _fail(error, FAILED)
    except KeyboardInterrupt:
        return INTERRUPTED


def _serve(flags: Mapping[str, str | None]) -> int:
    config = ServeConfig.resolve(flags)
    log.configure(config.log_level)
    # Late, because the server's libraries take a while to load and `--help` needs none.
    from outlast.server.app import serve

    return serve(config)


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
    return parser


def _add_flag(parser: argparse.ArgumentParser, name: str, entry: Setting) -> None:
    text = f"{entry.doc} [{entry.env}; default: {entry.default}]".replace("%", "%%")
    if entry.metavar:
        parser.add_argument(entry.flag, dest=name, metavar=entry.metavar, help=text)
    else:
        parser.add_argument(entry.flag, dest=name, action="store_const", const="yes", help=text)


def _fail(error: OutlastError, code: int) -> int:
    text = " ".join(log.redact(str(error)).split())
    print(f"outlast: {text}", file=sys.stderr)
    return code
