"""Processes whose memory the system lays out alike every time."""

from __future__ import annotations

import subprocess
import sys

import pytest

from outlast.server.layout import fixed_layout

_ADDR_NO_RANDOMIZE = 0x0040000


def personality() -> int:
    """Return the personality of a new process."""
    command = [sys.executable, "-c", "print(open('/proc/self/personality').read())"]
    return int(subprocess.check_output(command, text=True), 16)


def test_a_process_started_meanwhile_has_no_random_addresses() -> None:
    with fixed_layout():
        inside = personality()
    if not inside & _ADDR_NO_RANDOMIZE:
        pytest.skip("this system does not let a process choose its layout")
    assert inside & _ADDR_NO_RANDOMIZE


def test_processes_started_later_are_as_before() -> None:
    before = personality()
    with fixed_layout():
        pass
    assert personality() == before
