"""Column types of the journal.

Device addresses, handles, sizes and flags use all 64 bits, databases have signed integers
only. `U64` stores ``value - 2**63``: a bijection that keeps the order, so equality, ranges,
indexes, ``min`` and ``max`` are right across ``2**63`` on every database.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Dialect
from sqlalchemy.types import TypeDecorator

from outlast.errors import JournalValueError

#: Largest value of a `U64` column.
U64_MAX = (1 << 64) - 1
#: What is subtracted on the way in and added on the way out.
OFFSET = 1 << 63

_ARITHMETIC = frozenset(
    (operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod)
)


class U64(TypeDecorator[int]):
    """An unsigned 64-bit integer in a signed 64-bit column.

    Arithmetic in SQL would work on the shifted values, so it is refused: read, compute in
    Python and write inside one transaction.
    """

    impl = BigInteger
    cache_ok = True

    class Comparator(TypeDecorator.Comparator[int]):
        """Comparisons only."""

        def operate(self, op: Callable[..., Any], *other: Any, **kwargs: Any) -> ColumnElement[Any]:
            """Refuse arithmetic, build anything else."""
            if op in _ARITHMETIC:
                raise TypeError(f"SQL cannot {op.__name__} unsigned columns: compute in Python")
            return super().operate(op, *other, **kwargs)

    comparator_factory = Comparator

    def process_bind_param(self, value: int | None, dialect: Dialect) -> int | None:
        """Shift a value into the signed range."""
        if value is None:
            return None
        if not isinstance(value, int) or not 0 <= value <= U64_MAX:
            raise JournalValueError(f"{value!r} is not an unsigned 64-bit integer", value=value)
        return value - OFFSET

    def process_result_value(self, value: int | None, dialect: Dialect) -> int | None:
        """Shift a stored value back."""
        return None if value is None else value + OFFSET
