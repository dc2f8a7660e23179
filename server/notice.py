"""What a running server says of itself, in a file of its state folder, to one that is to follow.

It is there while clients are served, and counts only together with the lock of the state folder:
what a killed server left is of no process that holds that.
"""

from __future__ import annotations

import json
import logging
import os
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from outlast import __version__
from outlast.config import ServeConfig
from outlast.session.database import masked

log = logging.getLogger(__name__)

NAME = "server.json"


@dataclass(frozen=True, slots=True)
class Notice:
    """A running server."""

    pid: int
    version: str
    #: Where it was told to listen, and where it does.
    bind: str
    endpoint: str
    device: str
    provider: str
    #: Its journal, without a password.
    database: str
    #: Seconds that it may take to end.
    grace: float


def of(config: ServeConfig, endpoint: str) -> Notice:
    """Return what this process would say with these settings."""
    return Notice(
        pid=os.getpid(),
        version=__version__,
        bind=config.bind,
        endpoint=endpoint,
        device=config.device,
        provider=config.provider,
        database=masked(config.database),
        grace=config.grace,
    )


def post(config: ServeConfig, endpoint: str) -> None:
    """Say that this process serves at ``endpoint``."""
    path = config.state_dir / NAME
    new = path.with_suffix(".new")
    try:
        new.touch(mode=0o600)
        new.write_text(json.dumps(asdict(of(config, endpoint))))
        new.replace(path)
    except OSError as error:
        # It serves all the same; only nobody can take its place while it does.
        log.warning("no notice of this server: %s", error, extra={"action": "no_notice"})


def read(state: Path) -> Notice | None:
    """Return what lies there; None if that is nothing, or nothing that this version knows."""
    try:
        found: Any = json.loads((state / NAME).read_text())
        # A later version may say more.
        own = Notice(**{field.name: found[field.name] for field in fields(Notice)})
    except (OSError, ValueError, TypeError, KeyError):
        return None
    texts = [value for name, value in asdict(own).items() if name not in ("pid", "grace")]
    known = isinstance(own.pid, int) and isinstance(own.grace, int | float)
    known = known and all(isinstance(text, str) for text in texts)
    return own if known else None


def remove(state: Path) -> None:
    """Take back what was said; nothing may be there."""
    with suppress(OSError):
        (state / NAME).unlink()
