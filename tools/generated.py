"""Writing a generated file, or checking that it is current: what all generators share."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Callable
from pathlib import Path


def write_or_check(target: Path, make: Callable[[], str], doc: str | None) -> int:
    """Write a file, or with ``--check`` print how it would change; return the exit code.

    Parameters
    ----------
    target : Path
        The file.
    make : callable
        Returns what is to be in it.
    doc : str
        The generator's description.
    """
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--check", action="store_true", help="exit 1 if the file would change")
    check = parser.parse_args().check
    new = make()
    if not check:
        target.write_text(new, encoding="utf-8")
        return 0
    old = target.read_text(encoding="utf-8") if target.exists() else ""
    if old == new:
        return 0
    lines = old.splitlines(True), new.splitlines(True)
    sys.stderr.writelines(difflib.unified_diff(*lines, target.name, "generated"))
    print(f"{target.name} is out of date; run `make gen`", file=sys.stderr)
    return 1
