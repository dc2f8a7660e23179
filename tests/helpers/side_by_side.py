"""Programs of several sessions in one process: the driver serves one of them at a time."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from helpers.program import Program, open_link

from outlast.shim.link import SessionLink
from outlast.shim.process import process


class Neighbour(Program):
    """A program that keeps its session while others are in use."""

    def __init__(self, link: SessionLink) -> None:
        process.client = None  # the one before has kept it, and goes on later
        self.begin(link)
        self._client = process.client

    def use(self) -> None:
        """Make the driver's calls this program's until another one is used."""
        process.client = self._client

    def close(self, end: bool = False) -> None:
        """Say good-bye."""
        self.use()
        super().close(end)


@contextmanager
def side_by_side(endpoint: str, sessions: list[str], state: Path) -> Iterator[list[Neighbour]]:
    """Run a program in each session for the length of a block."""
    with ThreadPoolExecutor(len(sessions)) as pool:
        links = list(pool.map(lambda session: open_link(endpoint, session, state), sessions))
    programs = [Neighbour(link) for link in links]
    try:
        yield programs
    finally:
        for program in programs:
            program.close()
