"""Processes that hold memory in a keeper, and the keeper as a process."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from helpers.server_process import kill, wait_gone

from outlast.errors import KeeperError
from outlast.server.keeper.client import Keeper

HOLDER = """
import json, os, sys
from pathlib import Path
from outlast.errors import KeeperError
from outlast.server.keeper.client import Keeper

keeper = Keeper(Path(sys.argv[1]))
claims = []
for line in sys.stdin:
    op, *arguments = json.loads(line)
    try:
        if op == "claim":
            claims.append(keeper.claim(*arguments))
            found = claims[-1]
            note = os.pread(found.page, 8, 64).decode().strip(chr(0))
            answer = [note, found.manifest >= 0]
            answer.append([[c.device, c.address, c.size, os.pread(c.fd, 8, 0).decode()]
                           for c in found.chunks])
        elif op == "add":
            session, token, chunk, text = arguments
            fd = os.memfd_create("chunk")
            os.write(fd, text.encode())
            answer = keeper.add(session, token, chunk, fd)
            os.close(fd)
        elif op == "seal":
            session, token, text = arguments
            fd = os.memfd_create("manifest")
            os.write(fd, text.encode())
            answer = keeper.seal(session, token, 5, fd)
            os.close(fd)
        elif op == "rest":
            session, token, mark, text = arguments
            fd = os.memfd_create("manifest")
            os.write(fd, text.encode())
            answer = keeper.rest(session, token, 5, mark, fd)
            os.close(fd)
        elif op == "mark":
            answer = os.pwrite(claims[-1].page, arguments[0].to_bytes(8, "little"), 0)
        elif op == "manifest":
            answer = os.pread(claims[-1].manifest, 100, 0).decode()
        elif op == "note":
            answer = os.pwrite(claims[-1].page, arguments[0].encode(), 64)
        else:
            answer = getattr(keeper, op)(*arguments)
    except KeeperError as error:
        answer = "refused: " + error.reason
    print(json.dumps(answer), flush=True)
"""


class HolderProcess:
    """A process that does with the keeper what it is told."""

    def __init__(self, state: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(state)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, *request: Any) -> Any:
        """Have one request made and return its answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def kill(self) -> None:
        """End it as a crash would, and reap it."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None and not pipe.closed:
                with suppress(BrokenPipeError):
                    pipe.close()


def held(state: Path, session: str) -> dict[str, Any]:
    """Return what a keeper has of a session; nothing if it has nothing, or none runs."""
    keeper = Keeper(state)
    try:
        return next((h for h in keeper.holdings() if h["session"] == session), {})
    except KeeperError:
        return {}
    finally:
        keeper.close()


def running(state: Path) -> bool:
    """Return whether a keeper answers."""
    keeper = Keeper(state)
    try:
        keeper.holdings()
    except KeeperError:
        return False
    finally:
        keeper.close()
    return True


def keeper_pids(state: Path) -> list[int]:
    """Return the processes that serve this folder: none, or one."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                command = (entry / "cmdline").read_bytes().decode().split("\0")
                if "outlast.server.keeper" in command and str(state / "keeper.sock") in command:
                    found.append(int(entry.name))
    return found


def end_keeper(state: Path) -> list[int]:
    """SIGKILL the process that serves this folder, see it gone, and return its pid."""
    pids = keeper_pids(state)
    for pid in pids:
        kill(pid)
    wait_gone(pids)
    return pids


def keeper_pid(state: Path) -> int:
    """Return the process that serves this folder."""
    (pid,) = keeper_pids(state)
    return pid
