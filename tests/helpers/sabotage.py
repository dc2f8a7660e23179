"""A server whose handler of allocations does what it must not, at sizes that ask for it."""

from __future__ import annotations

import os
from enum import IntEnum
from pathlib import Path

from helpers import ptx
from helpers.server_process import assert_eventually


class Size(IntEnum):
    """Size of an allocation, and what its handler does."""

    #: Raises what nobody expects.
    RAISES = 0xBAD00
    #: Takes its time.
    SLEEPS = 0xBAD01
    #: Takes its process with it.
    CRASHES = 0xBAD02
    #: The same, but not a second time.
    RAISES_ONCE = 0xBAD03
    CRASHES_ONCE = 0xBAD04
    #: Returns when `Sabotage.release` is called.
    HELD = 0xBAD05
    #: Launches a kernel that ends the context, whatever the program has done; or does so once.
    FAULTS = 0xBAD06
    FAULTS_ONCE = 0xBAD07
    #: Launches a kernel that stores where no memory is; once.
    STRAYS_ONCE = 0xBAD08


#: Python runs this at the start of each process that finds it on its path.
CODE = """
import os, pathlib, signal, sys, time

FOLDER = pathlib.Path({folder!r})
if "outlast" in " ".join(sys.orig_argv):
    from outlast.server.calls import ANSWERED
    from outlast.session.operations import Op

    allocate = ANSWERED[Op.MEM_ALLOC]

    def first(name):
        try:
            (FOLDER / name).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def fault(driver, image, name):
        module = driver.cuModuleLoadData(image)[1]
        kernel = driver.cuModuleGetFunction(module, name)[1]
        assert driver.launch_packed(kernel, 0, 1, 1, 1, 1, 1, 1, 0, b"") == 0

    def sabotaged(executor, args, data, imposed):
        size = args[0]
        if size == {RAISES} or (size == {RAISES_ONCE} and first("raised")):
            raise KeyError("sabotage")
        if size == {CRASHES} or (size == {CRASHES_ONCE} and first("crashed")):
            os.kill(os.getpid(), signal.SIGSEGV)
        if size == {SLEEPS}:
            time.sleep({seconds})
        if size == {HELD}:
            (FOLDER / "held").touch()
            while not (FOLDER / "released").exists():
                time.sleep(0.01)
        if size == {FAULTS} or (size == {FAULTS_ONCE} and first("faulted")):
            fault(executor.driver, {trap!r}, b"trap_now")
        if size == {STRAYS_ONCE} and first("strayed"):
            fault(executor.driver, {stray!r}, b"stray_now")
        allocate(executor, args, data, imposed)

    ANSWERED[Op.MEM_ALLOC] = sabotaged
"""


class Sabotage:
    """What a `ServerProcess` needs to misbehave.

    Parameters
    ----------
    folder : Path
        Gets the code and the marks that the handler leaves.
    seconds : float
        How long `Size.SLEEPS` takes.
    """

    def __init__(self, folder: Path, seconds: float = 0.0) -> None:
        self._folder = folder
        sizes = {size.name: int(size) for size in Size}
        images = {"trap": ptx.TRAP.encode(), "stray": ptx.STRAY.encode()}
        code = CODE.format(folder=str(folder), seconds=seconds, **images, **sizes)
        (folder / "sitecustomize.py").write_text(code)
        path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
        self.environment = {"PYTHONPATH": path}

    def forget(self) -> None:
        """Let everything that happens once happen once more."""
        for name in ("raised", "crashed", "held", "released", "faulted", "strayed"):
            (self._folder / name).unlink(missing_ok=True)

    def wait_held(self) -> None:
        """Wait until a handler is held."""
        assert_eventually((self._folder / "held").exists, "the handler is held")

    def release(self) -> None:
        """Let a held handler return."""
        (self._folder / "released").touch()
