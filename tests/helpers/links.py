"""Links of this test process to a server, closed when the test is done with them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from outlast.config import ClientConfig
from outlast.shim import driver
from outlast.shim.connection import connect
from outlast.shim.link import SessionLink


@contextmanager
def linked(server: str, state: Path, session: str = "", **settings: Any) -> Iterator[SessionLink]:
    """Connect to ``server`` and close the link at the end."""
    link = connect(ClientConfig(server=server, state_dir=state, session=session, **settings))
    try:
        yield link
    finally:
        link.close(end=not session)


@contextmanager
def driving(server: str, state: Path, session: str = "", **settings: Any) -> Iterator[SessionLink]:
    """Connect, and let `outlast.shim.driver` use the link until the end."""
    with linked(server, state, session, **settings) as link:
        driver.use_link(link)
        try:
            yield link
        finally:
            driver.use_link(None)
