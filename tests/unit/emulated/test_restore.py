"""A device that dies is rebuilt in another process at the same addresses."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from outlast.server.drivers.base import Region

KERNELS = Path(__file__).parents[2] / "kernels"

#: Builds a fragmented heap with a list of device pointers, saves it, and kills itself.
DYING_PROGRAM = """
import os, pickle, signal, sys
from pathlib import Path
from outlast.server.drivers.emulated import EmulatedDriver
from outlast.server.drivers.emulated.jit import Jit
cache, image, out, base, size = sys.argv[1:]
cuda = EmulatedDriver(base=int(base), arena_size=int(size), jit=Jit(Path(cache)))
cuda.cuCtxSetCurrent(cuda.cuDevicePrimaryCtxRetain(0)[1])
module = cuda.cuModuleLoadData(Path(image).read_bytes())[1]
blocks = [cuda.cuMemAlloc(10_000 * n + 1)[1] for n in range(1, 20)]
nodes, total = cuda.cuMemAlloc(1600)[1], cuda.cuMemAlloc(4)[1]
for block in blocks[::2]:
    cuda.cuMemFree(block)
kernel = cuda.cuModuleGetFunction(module, b"make_list")[1]
packed = nodes.to_bytes(8, "little") + (100).to_bytes(4, "little")
assert cuda.launch_packed(kernel, 0, 1, 1, 1, 128, 1, 1, 0, packed) == 0
assert cuda.cuCtxSynchronize()[0] == 0
state = {
    "regions": [(r.address, r.size, r.kind, bytes(cuda.view(r))) for r in cuda.regions()],
    "globals": {g.name: g.address for g in cuda.module_info(module).globals},
    "nodes": nodes, "total": total, "next": [cuda.cuMemAlloc(n)[1] for n in (5000, 70_000, 1)],
}
Path(out).write_bytes(pickle.dumps(state))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_pointers_in_device_memory_still_hold_after_kill_minus_nine(
    make_host: Any, tmp_path: Path
) -> None:
    host = make_host()
    cuda, device = host.cuda, host.cuda.devices()[0]
    out, image = tmp_path / "state", KERNELS / "language.ptx"
    child = subprocess.run(
        [
            *(sys.executable, "-c", DYING_PROGRAM, str(tmp_path), str(image), str(out)),
            *(str(device.arena_base), str(device.arena_size)),
        ],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        timeout=50,
        check=False,
    )
    assert child.returncode == -signal.SIGKILL
    state = pickle.loads(out.read_bytes())
    for address, size, kind, _ in reversed(state["regions"]):
        if kind == "alloc":
            assert cuda.allocate_at(0, address, size) == 0
    result, module = cuda.load_module_at(image.read_bytes(), state["globals"])
    assert result == 0
    assert cuda.wait(cuda.ticket(), 10.0)
    for address, size, kind, data in state["regions"]:
        cuda.view(Region(0, address, size, kind))[:] = data
    sum_list = cuda.cuModuleGetFunction(module, b"sum_list")[1]
    host.run(sum_list, 1, 1, state["nodes"], state["total"])
    assert host.get(state["total"], np.zeros(1, np.int32))[0] == sum(i * i for i in range(100))
    assert [cuda.cuMemAlloc(n)[1] for n in (5000, 70_000, 1)] == state["next"]
