"""Current context of each thread: a stack, as in CUDA."""

from __future__ import annotations

import threading
from typing import Any

from outlast.cuda_types import CUstreamCaptureMode
from outlast.shim.linkage import Link
from outlast.shim.objects import Context, Plan


class ThreadState(threading.local):
    """The calling thread's context stack."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self.stack: list[Context] = []
        #: It runs a host function.
        self.forbidden = False
        #: What captures of other threads would mean for it.
        self.capture_mode = CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
        #: Launch plans of the current context.
        self.plans: dict[tuple[Any, ...], Plan] = {}

    def forbid(self) -> None:
        """Refuse all calls of this thread from now on."""
        self.forbidden = True

    @property
    def top(self) -> Context | None:
        """Current context, if any."""
        return self.stack[-1] if self.stack else None

    def push(self, context: Context) -> None:
        """Make a context current on top of the others."""
        self.stack.append(context)
        self._changed()

    def pop(self) -> Context | None:
        """Take the current context off the stack."""
        popped = self.stack.pop() if self.stack else None
        self._changed()
        return popped

    def replace(self, context: Context) -> None:
        """Make a context current instead of the top one."""
        if self.stack:
            self.stack[-1] = context
        else:
            self.stack.append(context)
        self._changed()

    def _changed(self) -> None:
        top = self.top
        self.plans = top.plans if top else {}
        self._link.bind(top.handle if top else 0)
