"""Loads and runs damaged PTX in a process of its own: ``fuzz_ptx.py COUNT SEED CACHE``.

Files are single kernels of ``tests/kernels``, damaged as lines, words, numbers and characters, so
that many still load. What loads is launched, on a device with a watchdog. Each file must end in
success or in a result that says what is wrong; the process prints how often which one came.
"""

from __future__ import annotations

import logging
import random
import re
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from outlast.server.drivers.emulated import EmulatedDriver
from outlast.server.drivers.emulated.jit import Jit

KERNELS = Path(__file__).parents[1] / "kernels"
ARENA = 64 << 30
BASE = 0x1C00_0000_0000
MEMORY = 64 << 10  # bytes
#: Results that a damaged image, or what is left of its kernel, may end in.
OUT_OF_MEMORY, INVALID_IMAGE, INVALID_PTX, NEWER, UNSUPPORTED = 2, 200, 218, 222, 801
REFUSALS = {OUT_OF_MEMORY, INVALID_IMAGE, INVALID_PTX, NEWER, UNSUPPORTED}
FAULTS = {700, 702, 710, 714, 716, 718, 719}
WATCHDOG = 0.05  # seconds
LONGEST = 9000  # characters of a kernel

_BODY = re.DOTALL | re.MULTILINE
NUMBERS = ["0", "1", "-1", "3", "7", "32", "33", "255", "4096", "65536", "2147483647", "4294967295"]
NUMBERS += ["-2147483648", "9223372036854775807", "18446744073709551615", "0f7FC00000", "1.5"]
TYPES = [f"{kind}{bits}" for kind in "bus" for bits in (8, 16, 32, 64)]
TYPES += ["f16", "bf16", "f32", "f64", "f16x2", "bf16x2", "pred", "b128", "tf32", "v2", "v4"]
TYPES += ["global", "shared", "local", "const", "param", "rz", "ftz", "sat", "wide", "sync"]


def sources() -> list[str]:
    """Return files of one kernel each, with what the kernel needs."""
    found = []
    for path in sorted(KERNELS.rglob("*.ptx")):
        text = path.read_text()
        start = re.search(r"^\.version.*?^\.address_size 64\n", text, re.DOTALL | re.MULTILINE)
        assert start is not None
        shared = re.findall(r"^\.(?:global|const|extern \.shared)[^\n]*;\n", text, re.MULTILINE)
        functions = re.findall(r"^\.(?:func|extern \.func|visible \.func).*?^[};]\n", text, _BODY)
        common = start.group() + "".join(shared) + "".join(functions)
        kernels = re.findall(r"^\.visible \.entry .*?^}\n", text, _BODY)
        found += [common + kernel for kernel in kernels if len(common + kernel) < LONGEST]
    return found


def _lines(text: str, chance: random.Random) -> str:
    lines = text.split("\n")
    first, second = (chance.randrange(len(lines) // 3, len(lines)) for _ in range(2))
    action = chance.randrange(3)
    if action == 0:
        del lines[first]
    elif action == 1:
        lines.insert(first, lines[second])
    else:
        lines[first], lines[second] = lines[second], lines[first]
    return "\n".join(lines)


def _replace(pattern: str, choices: list[str] | None) -> Callable[[str, random.Random], str]:
    def damage(text: str, chance: random.Random) -> str:
        found = list(re.finditer(pattern, text))[4:]
        if not found:
            return text
        place = chance.choice(found)
        new = chance.choice(choices) if choices else chance.choice(found).group()
        return text[: place.start()] + new + text[place.end() :]

    return damage


def _character(text: str, chance: random.Random) -> str:
    place = chance.randrange(len(text) + 1)
    return text[:place] + chr(chance.randrange(128)) + text[place + chance.randrange(2) :]


def _cut(text: str, chance: random.Random) -> str:
    return text[: chance.randrange(len(text) + 1)]


DAMAGES = [
    *(_lines, _lines),
    *(_replace(r"%[a-z]+\d+", None),) * 3,  # another register
    *(_replace(r"(?<=[.\s])(?:[busf]\d+|pred|global|shared|local|param)\b", TYPES),) * 2,
    _replace(r"\b\d+\b", NUMBERS),
    _replace(r"(?<=[\[+])\d+(?=\])", NUMBERS),
    _replace(r"[%$.\w]+|[^\s\w]", None),  # another word
    *(_character, _cut),
]


def damaged(text: str, chance: random.Random) -> str:
    """Return a file with one to three damages."""
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        text = chance.choice(DAMAGES)(text, chance)
    return text


class Runner:
    """A device that runs whatever loads."""

    def __init__(self, cache: Path) -> None:
        self.cuda = EmulatedDriver(
            base=BASE,
            arena_size=ARENA,
            jit=Jit(cache),
            watchdog_s=WATCHDOG,
            capture_output=True,
        )
        self.cuda.cuInit(0)
        self.counts: Counter[str] = Counter()
        self.begin()

    def begin(self) -> None:
        """Take a context and memory, at first and after a fault."""
        context = self.cuda.cuDevicePrimaryCtxRetain(0)[1]
        assert self.cuda.cuCtxSetCurrent(context)[0] == 0
        result, self.memory = self.cuda.cuMemAlloc(MEMORY)
        assert result == 0, result

    def take(self, text: str, chance: random.Random) -> None:
        """Load one file and launch what it has."""
        result, module = self.cuda.cuModuleLoadData(text.encode("ascii", "replace"))
        if result:
            assert int(result) in REFUSALS, f"{result} at load: {self.cuda.load_log}"
            assert self.cuda.load_log
            self.counts[f"load {int(result)}"] += 1
            return
        for function in self.cuda.module_info(module).functions:
            self._launch(module, function.name, chance)
            if self.cuda.fault() is not None:
                assert self.cuda.cuDevicePrimaryCtxReset(0)[0] == 0
                self.begin()
                return
        assert self.cuda.cuModuleUnload(module)[0] == 0

    def _launch(self, module: int, name: str, chance: random.Random) -> None:
        kernel = self.cuda.cuModuleGetFunction(module, name.encode())[1]
        packed = bytearray(4096)
        for parameter in self.cuda._function(kernel).parameters:
            value = self.memory if parameter.size == 8 else chance.randrange(64)
            if parameter.size in (4, 8):
                end = parameter.offset + parameter.size
                packed[parameter.offset : end] = value.to_bytes(parameter.size, "little")
        result = self.cuda.launch_packed(kernel, 0, 2, 1, 1, 40, 1, 1, 256, packed)
        if result:
            # What cannot be compiled has to be refused when it is loaded.
            assert result != INVALID_PTX, self.cuda.load_log
            self.counts[f"launch {result}"] += 1
            return
        ended = int(self.cuda.cuCtxSynchronize()[0])
        assert ended == 0 or ended in FAULTS, ended
        self.counts[f"run {ended}"] += 1


def main(count: int, seed: int, cache: Path) -> None:
    """Take damaged files and print what became of them."""
    logging.disable(logging.CRITICAL)
    files, runner = sources(), Runner(cache)
    for number in range(count):
        chance = random.Random(f"{seed} {number}")
        text = damaged(chance.choice(files), chance)
        (cache / "last.ptx").write_text(text)
        try:
            runner.take(text, chance)
        except BaseException:
            print(f"file {number} of seed {seed}:\n{text}", flush=True)
            raise
    print(dict(runner.counts), flush=True)
    runner.cuda.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
