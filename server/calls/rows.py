"""Fills and copies of rows in device memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from outlast.server.calls.memory import INVALID_VALUE, SERIAL, answer_copy
from outlast.server.calls.registry import Args, Imposed, answered, one_way, unusable
from outlast.server.drivers.base import Rows
from outlast.session.handles import HandleKind
from outlast.session.operations import Op
from outlast.session.schema import MAX_FRAME

if TYPE_CHECKING:
    from outlast.server.executor import Executor

INVALID_HANDLE = 400


@one_way(Op.MEMSET_2D)
def memset_2d(ex: Executor, args: Args, data: Any) -> int:
    """Fill elements of 1, 2 or 4 bytes in rows."""
    address, stream, pitch, columns, count, value, width, _ = args
    real = ex.handles.real[HandleKind.STREAM].get(stream)
    if real is None:
        return unusable(ex, stream)
    rows = Rows(count, columns * width, pitch)
    if width not in (1, 2, 4) or not rows.valid:
        return INVALID_VALUE
    return ex.driver.fill_rows(address, rows, columns, value, width, real)


@one_way(Op.COPY_HTOD_2D)
def copy_htod_2d(ex: Executor, args: Args, data: Any) -> int:
    """Copy bytes that came with the call to rows."""
    address, stream, pitch, width, _ = args
    real = ex.handles.real[HandleKind.STREAM].get(stream)
    if real is None:
        return unusable(ex, stream)
    rows = Rows(len(data) // width if width else 0, width, pitch)
    if not rows.valid or rows.count * width != len(data):
        return INVALID_VALUE
    return ex.driver.write_rows(address, rows, data, real)


@answered(Op.COPY_DTOH_2D)
def copy_dtoh_2d(ex: Executor, args: Args, data: Any, imposed: Imposed) -> None:
    """Copy rows as they are at this place; replayed ones have landed already."""
    if imposed is not None:
        return
    address, stream, pitch, width, count, _ = args
    real = ex.handles.real[HandleKind.STREAM].get(stream)
    rows = Rows(count, width, pitch)
    if real is None or not rows.valid or count * width > MAX_FRAME:
        ex.answer(INVALID_HANDLE if real is None else INVALID_VALUE)
        return
    answer_copy(ex, real, *ex.driver.read_rows(address, rows, real))


@one_way(Op.COPY_DTOD_2D)
def copy_dtod_2d(ex: Executor, args: Args, data: Any) -> int:
    """Copy rows between device addresses, of different devices too."""
    destination, source, stream, to_pitch, pitch, width, count, flags = args
    real = ex.handles.real[HandleKind.STREAM].get(stream)
    if real is None:
        return unusable(ex, stream)
    to, rows = Rows(count, width, to_pitch), Rows(count, width, pitch)
    if not (to.valid and rows.valid):
        return INVALID_VALUE
    if flags & SERIAL:
        ex.driver.order_all()
    result = ex.driver.copy_rows(destination, to, source, rows, real)
    if flags & SERIAL:
        ex.driver.order_all()
    return result
