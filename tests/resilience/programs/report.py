"""What a client program of the soak tells on its standard output.

``step N of M`` lines while it goes, and one JSON line at its end: ``result`` must be the same
in every run, ``statistics`` says what the link went through. SIGUSR1 makes it write the
stacks of all its threads to standard error.
"""

from __future__ import annotations

import faulthandler
import json
import signal
import threading
from typing import Any


class Report:
    """Writes progress and the result; any thread may call it."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0
        self._lock = threading.Lock()
        faulthandler.register(signal.SIGUSR1)

    def step(self, number: int) -> None:
        """Tell that ``number`` steps are done."""
        with self._lock:
            self._done = number
            print(f"step {number} of {self._total}", flush=True)

    def one_more(self) -> None:
        """Tell that another step is done, whoever did it."""
        with self._lock:
            self._done += 1
            print(f"step {self._done} of {self._total}", flush=True)

    def result(self, result: dict[str, Any], statistics: dict[str, Any]) -> None:
        """Tell the result."""
        print(json.dumps({"result": result, "statistics": statistics}), flush=True)
