"""The call that links."""

from __future__ import annotations

from collections.abc import Sequence

from outlast.cuda_types import CUjitInputType
from outlast.server.drivers.emulated.linking import join
from outlast.server.drivers.emulated.loader import read_image, read_program
from outlast.server.drivers.emulated.modules import ModuleCalls
from outlast.server.drivers.emulated.ptx.problems import (
    ImageError,
    NoBinaryForDevice,
    UnsupportedPtx,
)
from outlast.session.link_inputs import LinkInput

_TEXTS = (CUjitInputType.CU_JIT_INPUT_PTX, CUjitInputType.CU_JIT_INPUT_FATBINARY)


class LinkCalls(ModuleCalls):
    """Linking of PTX."""

    def link(self, inputs: Sequence[LinkInput]) -> tuple[int, bytes]:
        """Return a ``CUresult`` value and the text that several texts make together."""
        try:
            text = join([_text_of(part) for part in inputs])
            read_program(text)
        except ImageError as error:
            self._refused(error)
            return error.cu_result, b""
        return 0, text.encode()


def _text_of(part: LinkInput) -> str:
    """Return the PTX of an input.

    Raises
    ------
    ImageError
        It has none.
    """
    if part.kind == CUjitInputType.CU_JIT_INPUT_CUBIN:
        raise NoBinaryForDevice(f"{part.name} is machine code; this device links PTX only")
    if part.kind not in _TEXTS:
        raise UnsupportedPtx(f"{part.name} is neither PTX nor a fatbin of it")
    return read_image(part.data)
