"""Tables of live objects by handle. Handles are never reused, so a stale one is never found."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, Protocol, TypeVar

from outlast.cuda_types import CUresult
from outlast.shim.failure import CallFailure
from outlast.shim.handles import as_int
from outlast.shim.objects import Context


class Owned(Protocol):
    """An object that dies with its context, if it has one."""

    @property
    def handle(self) -> int:
        """Its number."""
        ...

    @property
    def context(self) -> Context | None:
        """Its context."""
        ...


T = TypeVar("T", bound=Owned)


class HandleTable(Generic[T]):
    """Live objects of one kind."""

    def __init__(self) -> None:
        self._rows: dict[int, T] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, item: T) -> None:
        """Enter a new object."""
        self._rows[item.handle] = item

    def __iter__(self) -> Iterator[T]:
        return iter(list(self._rows.values()))

    def find(self, handle: Any) -> T | None:
        """Return an object if there is one of this handle and kind."""
        return self._rows.get(as_int(handle))

    def get(self, handle: Any) -> T:
        """Return an object; INVALID_HANDLE if there is none of this handle and kind."""
        item = self._rows.get(as_int(handle))
        if item is None:
            raise CallFailure(CUresult.CUDA_ERROR_INVALID_HANDLE)
        return item

    def remove(self, item: T) -> None:
        """Drop an object."""
        del self._rows[item.handle]

    def of(self, context: Context) -> list[T]:
        """Return the objects of a context."""
        return [item for item in self if item.context is context]

    def drop_context(self, context: Context) -> None:
        """Drop every object of a context."""
        for item in self.of(context):
            self.remove(item)
