"""What there is once per process: the client state, the last link error, the fork guard."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable

from outlast.errors import OutlastError
from outlast.shim.client import Client
from outlast.shim.linkage import Link

log = logging.getLogger("outlast")


def _own_link() -> Link:
    # Imported at the first cuInit: a process that never gets there opens no socket.
    from outlast.shim.connection import current

    return current()


class Process:
    """The process's client, made by the first `cuInit` that reaches a server."""

    def __init__(self) -> None:
        #: None before cuInit has succeeded and in a forked child.
        self.client: Client | None = None
        #: A parent with a client forked us: CUDA cannot be used here.
        self.forked = False
        self.last_error: OutlastError | None = None
        self._logged = ""
        self._connect: Callable[[], Link] = _own_link
        self._lock = threading.Lock()
        self._inherited: Client | None = None

    def initialize(self) -> Client:
        """Return the client, connecting if there is none yet."""
        with self._lock:
            if self.client is None:
                self.client = Client(self._connect())
                self._logged = ""
            return self.client

    def use(self, connect: Callable[[], Link] | None) -> None:
        """Forget the client; the next `initialize` gets its link from ``connect``."""
        with self._lock:
            client, self.client = self.client, None
            self._connect = connect or _own_link
            self.forked = False
        if client is not None:
            client.retire()

    def report(self, error: OutlastError) -> int:
        """Keep and log (once) an error that ends a call; return the call's CUresult value."""
        self.last_error = error
        text = describe(error)
        if text != self._logged:
            self._logged = text
            log.error(text, extra={"action": "call_failed", "error": type(error).__name__})
        return error.cu_result or OutlastError.cu_result

    def before_fork(self) -> None:
        """Let copies to pinned memory arrive: they would miss in the child's copy of it."""
        if self.client is not None and self.client.landings:
            with contextlib.suppress(OutlastError):
                self.client.landings.wait()

    def after_fork(self) -> None:
        """Cut a forked child off: the session and its sockets stay the parent's."""
        self._lock = threading.Lock()
        if self.client is not None:
            self.forked = True
            # Kept, so that no destructor closes what the parent uses.
            self._inherited, self.client = self.client, None


def describe(error: OutlastError) -> str:
    """Return an error's text with every detail that the text itself does not name."""
    text = str(error)
    details = [
        f"{k}={v}" for k, v in sorted(error.fields.items()) if v is not None and str(v) not in text
    ]
    return f"{type(error).__name__}: {text}" + (f" ({', '.join(details)})" if details else "")


process = Process()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=process.before_fork, after_in_child=process.after_fork)
