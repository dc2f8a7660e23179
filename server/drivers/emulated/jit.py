"""LLVM IR -> native code, with the objects kept on disk.

An object is keyed by everything it depends on: the IR (and so the PTX, the kernel and the
lowering), the processor and its features, LLVM and the pipeline. Addresses of module variables
are no part of it: the code reads them from a table that is filled after loading.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import struct
import tempfile
from pathlib import Path

import llvmlite
import llvmlite.binding as llvm

logger = logging.getLogger(__name__)

#: Changes when the way of compiling changes.
JIT_VERSION = 1
#: The optimising pipeline's level; 2 compiles slower and runs no faster.
PIPELINE_LEVEL = 1
CODEGEN_LEVEL = 2

_DIGEST_SIZE = 32  # bytes
_SECTION = struct.Struct("<IIQQQQIIQQ")  # an ELF section header
_SYMTAB = 2

llvm.initialize_native_target()
llvm.initialize_native_asmprinter()
llvm.initialize_native_asmparser()
llvm.load_library_permanently("libm.so.6")


class NativeCode:
    """Loaded machine code; the addresses are valid while the object lives."""

    def __init__(self, object_code: bytes) -> None:
        for name in undefined_symbols(object_code):
            if llvm.address_of_symbol(name) is None:
                raise RuntimeError(f"compiled code needs {name}, which this system does not have")
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _target_machine())
        self._engine.add_object_file(llvm.ObjectFileRef.from_data(object_code))
        self._engine.finalize_object()

    def address(self, name: str) -> int:
        """Return the address of an exported function."""
        found: int = self._engine.get_function_address(name)
        return found


class Jit:
    """Compiles IR, or loads what an earlier process compiled."""

    def __init__(self, cache: Path | None = None) -> None:
        self._cache = cache or default_cache_directory()
        #: How often the compiler ran, and how often the disk had the object.
        self.compiled = 0
        self.reused = 0

    def build(self, ir: str) -> NativeCode:
        """Return native code for ``ir``.

        Raises
        ------
        RuntimeError
            LLVM refuses the IR.
        """
        path = self._cache / f"{_key(ir)}.o"
        code = _read(path)
        if code is not None:
            self.reused += 1
            return NativeCode(code)
        self.compiled += 1
        code = _compile(ir)
        _write(path, code)
        return NativeCode(code)


def undefined_symbols(object_code: bytes) -> list[str]:
    """Return the names that a 64-bit ELF object takes from elsewhere.

    The loader would leave a missing one at address 0 and say nothing.
    """
    (sections,) = struct.unpack_from("<Q", object_code, 40)
    size, count = struct.unpack_from("<HH", object_code, 58)
    headers = [_SECTION.unpack_from(object_code, sections + i * size) for i in range(count)]
    found = []
    for _, kind, _, _, offset, length, link, _, _, entry in headers:
        if kind != _SYMTAB:
            continue
        names = headers[link][4]
        for place in range(offset + entry, offset + length, entry):
            name, _, _, section = struct.unpack_from("<IBBH", object_code, place)
            if section == 0 and name:
                start = names + name
                text = object_code[start : object_code.index(b"\0", start)]
                found.append(text.decode())
    return found


def default_cache_directory() -> Path:
    """Return where objects are kept: ``OUTLAST_CACHE_DIR`` or the user's cache."""
    base = os.environ.get("OUTLAST_CACHE_DIR")
    root = Path(base) if base else Path.home() / ".cache" / "outlast"
    return root / "ptx"


def _target_machine() -> llvm.TargetMachine:
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=CODEGEN_LEVEL,
        jit=True,
    )


def _compile(ir: str) -> bytes:
    machine = _target_machine()
    module = llvm.parse_assembly(ir)
    module.triple = machine.triple
    module.data_layout = str(machine.target_data)
    module.verify()
    builder = llvm.create_pass_builder(
        machine, llvm.create_pipeline_tuning_options(speed_level=PIPELINE_LEVEL)
    )
    builder.getModulePassManager().run(module, builder)
    code: bytes = machine.emit_object(module)
    return code


def _key(ir: str) -> str:
    parts = (
        JIT_VERSION,
        llvmlite.__version__,
        llvm.llvm_version_info,
        llvm.get_default_triple(),
        llvm.get_host_cpu_name(),
        llvm.get_host_cpu_features().flatten(),
        PIPELINE_LEVEL,
        CODEGEN_LEVEL,
        ir,
    )
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()


def _read(path: Path) -> bytes | None:
    """Return a stored object; None if there is none or it is damaged."""
    try:
        stored = path.read_bytes()
    except OSError:
        return None
    digest, code = stored[:_DIGEST_SIZE], stored[_DIGEST_SIZE:]
    if hashlib.sha256(code).digest() != digest:
        logger.warning(
            "A cached kernel is damaged and is compiled again.",
            extra={"action": "cache_entry_damaged", "path": str(path)},
        )
        return None
    return code


def _write(path: Path, code: bytes) -> None:
    """Store an object, whole or not at all; a full or read-only disk is no error."""
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            temporary = file.name
            file.write(hashlib.sha256(code).digest() + code)
        os.replace(temporary, path)
    except OSError as error:
        logger.warning(
            "A compiled kernel could not be cached: %s.", error, extra={"action": "cache_skipped"}
        )
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
