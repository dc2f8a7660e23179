"""Flows: the gateway's multi-step work as generators over one event loop.

A flow yields a `Step`; the loop goes on and resumes the flow when the step is done. So a
HELLO reads top to bottom although it waits for the journal and for a worker.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from outlast.errors import OutlastError

Resume = Callable[[Any, OutlastError | None], None]
#: Starts the step; the argument is to be called once, in the gateway's thread.
Step = Callable[[Resume], None]
Flow = Generator[Step, Any, Any]


def run(flow: Flow, done: Callable[[Any, OutlastError | None], None]) -> None:
    """Run a flow; ``done(result, error)`` is called at its end."""

    def resume(value: Any, error: OutlastError | None) -> None:
        try:
            step = flow.throw(error) if error is not None else flow.send(value)
        except StopIteration as stop:
            done(stop.value, None)
        except OutlastError as failure:
            done(None, failure)
        else:
            step(resume)

    resume(None, None)
