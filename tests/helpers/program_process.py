"""A `Program` in a process of its own, to be killed and followed by another one.

The test asks it to call its methods; questions and answers are Python literals, one a line.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parent.parent


class ProgramProcess:
    """A client process.

    Parameters
    ----------
    endpoint, session, state
        The server, the session, and the client's own state folder (with its resume token).
    """

    def __init__(self, endpoint: str, session: str, state: Path) -> None:
        environment = {
            **os.environ,
            "LUPINE_SERVER": endpoint,
            "LUPINE_SESSION": session,
            "LUPINE_STATE_DIR": str(state),
            "PYTHONPATH": os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(TESTS)]),
        }
        command = [sys.executable, "-m", "helpers.program_process"]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def __enter__(self) -> ProgramProcess:
        return self

    def __exit__(self, *exc: object) -> None:
        self.kill()

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the program and return what it returns."""
        self.begin(method, *arguments)
        return self.finish()

    def begin(self, method: str, *arguments: Any) -> None:
        """Begin a call without waiting for it."""
        assert self.process.stdin is not None
        self.process.stdin.write(repr((method, arguments)) + "\n")
        self.process.stdin.flush()

    def finish(self) -> Any:
        """Return what the call that was begun returns."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the program ended (code {self.process.wait()})"
        return ast.literal_eval(line)

    def kill(self) -> None:
        """SIGKILL the process."""
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None and not stream.closed:
                stream.close()


def main() -> None:
    """Answer calls until stdin ends."""
    from helpers.program import Program

    program = Program(
        os.environ["LUPINE_SERVER"],
        os.environ["LUPINE_SESSION"],
        Path(os.environ["LUPINE_STATE_DIR"]),
    )
    for line in sys.stdin:
        method, arguments = ast.literal_eval(line)
        print(repr(getattr(program, method)(*arguments)), flush=True)
    program.close()


if __name__ == "__main__":
    main()
