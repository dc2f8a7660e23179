"""What a GPU does behind a stream that stands still; numbers are printed, run with ``-s``.

The rules of the server stand on these facts: how many operations a stream takes before a call
blocks, and which calls wait for a kernel that spins.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytestmark = pytest.mark.gpu

MIB = 1 << 20
NON_BLOCKING = 1
#: A call that takes longer waits for the kernel.
PROMPT = 5.0  # seconds
DEADLINE = 30.0  # seconds

SPIN = b"""
.version 8.0
.target sm_80
.address_size 64
.visible .entry spin(.param .u64 flag)
{
    .reg .pred %p<2>;
    .reg .b32 %r<2>;
    .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [flag];
AGAIN:
    ld.volatile.global.u32 %r1, [%rd1];
    setp.eq.u32 %p1, %r1, 0;
    @%p1 bra AGAIN;
    ret;
}
.visible .entry nothing()
{
    ret;
}
\0"""


def ok(answer: tuple[Any, ...]) -> Any:
    """Return the value of a call that must succeed."""
    assert not int(answer[0]), answer
    return answer[1] if len(answer) > 1 else None


class Spinning:
    """A context in which a kernel spins in one stream until it is let go."""

    def __init__(self, cuda: Any) -> None:
        self.cuda = cuda
        self.context = ok(cuda.cuDevicePrimaryCtxRetain(0))
        ok(cuda.cuCtxSetCurrent(self.context))
        self.module = ok(cuda.cuModuleLoadData(SPIN))
        self.nothing = ok(cuda.cuModuleGetFunction(self.module, b"nothing"))
        spin = ok(cuda.cuModuleGetFunction(self.module, b"spin"))
        self.flag = ok(cuda.cuMemAlloc(4))
        self.stream, self.other = (ok(cuda.cuStreamCreate(NON_BLOCKING)) for _ in range(2))
        for stream in (self.stream, self.other):
            self.launch(stream)
        ok(cuda.cuMemsetD32(self.flag, 0, 1))
        ok(cuda.cuCtxSynchronize())
        types = ((ctypes.c_void_p,),)
        self._spin = lambda: cuda.cuLaunchKernel(
            spin, 1, 1, 1, 1, 1, 1, 0, self.stream, ((int(self.flag),), *types), 0
        )
        ok(self._spin())

    def launch(self, stream: Any) -> int:
        """Launch a kernel that does nothing."""
        code = self.cuda.cuLaunchKernel(self.nothing, 1, 1, 1, 1, 1, 1, 0, stream, 0, 0)[0]
        return int(code)

    def let_go(self) -> None:
        """End the kernel, through another stream."""
        ok(self.cuda.cuMemsetD32Async(self.flag, 1, 1, self.other))

    def prompt(self, what: str, call: Callable[[], Any]) -> bool:
        """Return whether a call in a thread of its own returns while the kernel spins."""
        ended = threading.Event()

        def run() -> None:
            ok(self.cuda.cuCtxSetCurrent(self.context))
            call()
            ended.set()

        begun = time.monotonic()
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        in_time = ended.wait(PROMPT)
        took = time.monotonic() - begun
        print(f"{what}: {f'{took * 1e3:.2f} ms' if in_time else 'waits for the kernel'}")
        if not in_time:
            self.let_go()
            assert ended.wait(DEADLINE), f"{what} does not even end behind the kernel"
            ok(self.cuda.cuCtxSynchronize())
            ok(self.cuda.cuMemsetD32(self.flag, 0, 1))
            ok(self.cuda.cuCtxSynchronize())
            ok(self._spin())
        thread.join(DEADLINE)
        return in_time

    def close(self) -> None:
        """End it."""
        self.let_go()
        ok(self.cuda.cuCtxSynchronize())
        ok(self.cuda.cuMemFree(self.flag))
        for stream in (self.stream, self.other):
            ok(self.cuda.cuStreamDestroy(stream))
        ok(self.cuda.cuModuleUnload(self.module))
        ok(self.cuda.cuDevicePrimaryCtxRelease(0))


@pytest.fixture
def spinning() -> Iterator[Spinning]:
    driver = pytest.importorskip("cuda.bindings.driver")
    ok(driver.cuInit(0))
    made = Spinning(driver)
    yield made
    made.close()


def test_what_the_server_does_at_once_does_not_wait_for_a_kernel(spinning: Spinning) -> None:
    cuda = spinning.cuda
    pinned: list[Any] = []
    loaded: list[Any] = []
    streams: list[Any] = []
    prompt = {
        "cuMemHostAlloc, 16 MiB": lambda: pinned.append(ok(cuda.cuMemHostAlloc(16 * MIB, 1))),
        "cuStreamCreate": lambda: streams.append(ok(cuda.cuStreamCreate(NON_BLOCKING))),
        "cuStreamDestroy": lambda: ok(cuda.cuStreamDestroy(streams.pop())),
        "cuEventCreate": lambda: ok(cuda.cuEventDestroy(ok(cuda.cuEventCreate(2)))),
        "cuModuleLoadData": lambda: loaded.append(ok(cuda.cuModuleLoadData(SPIN))),
        "cuFuncLoad": lambda: ok(
            cuda.cuFuncLoad(ok(cuda.cuModuleGetFunction(loaded[0], b"nothing")))
        ),
        "cuMemGetInfo": lambda: cuda.cuMemGetInfo(),
    }
    late = [what for what, call in prompt.items() if not spinning.prompt(what, call)]
    assert not late


def test_which_calls_wait_for_a_kernel(spinning: Spinning) -> None:
    """Told, not asserted: those are done later, whether they wait or not."""
    cuda = spinning.cuda
    module, pinned = ok(cuda.cuModuleLoadData(SPIN)), ok(cuda.cuMemHostAlloc(MIB, 1))
    context = ok(cuda.cuCtxCreate(None, 0, 0))
    ok(cuda.cuCtxSetCurrent(spinning.context))
    memory = ok(cuda.cuMemAlloc(MIB))
    spinning.prompt("cuModuleUnload", lambda: ok(cuda.cuModuleUnload(module)))
    spinning.prompt("cuMemFree", lambda: ok(cuda.cuMemFree(memory)))
    spinning.prompt("cuMemFreeHost", lambda: ok(cuda.cuMemFreeHost(pinned)))
    spinning.prompt("cuCtxCreate", lambda: ok(cuda.cuCtxDestroy(ok(cuda.cuCtxCreate(None, 0, 0)))))
    spinning.prompt("cuCtxDestroy of another context", lambda: ok(cuda.cuCtxDestroy(context)))


def test_launches_go_on_while_a_module_is_unloaded_behind_a_kernel(spinning: Spinning) -> None:
    """Told, not asserted: whether unloading in another thread would hold up the calls."""
    cuda = spinning.cuda
    module = ok(cuda.cuModuleLoadData(SPIN))

    def unload() -> None:
        ok(cuda.cuCtxSetCurrent(spinning.context))
        ok(cuda.cuModuleUnload(module))

    thread = threading.Thread(target=unload, daemon=True)
    thread.start()
    time.sleep(0.2)  # it tells nothing else that it waits
    spinning.prompt("launch beside cuModuleUnload", lambda: ok((spinning.launch(spinning.other),)))
    spinning.let_go()
    thread.join(DEADLINE)
    assert not thread.is_alive()
    ok(cuda.cuCtxSynchronize())
