"""Strict JSON for manifests: canonical bytes out, checked records in.

A record is a dataclass whose fields have types like ``Annotated[int, u64]``: each names
the check its JSON value must pass. Nothing is guessed or converted, so a value that a
newer or a broken writer stored is found at the field where it stands.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from enum import IntEnum
from typing import Any, TypeVar, get_type_hints

#: What JSON can say. Floats are finite; integers have any size.
JSON = None | bool | int | float | str | list["JSON"] | dict[str, "JSON"]

#: Takes a parsed value and its path in the document; returns the value to keep.
Check = Callable[[Any, str], Any]

T = TypeVar("T")
E = TypeVar("E", bound=IntEnum)

U32_MAX = (1 << 32) - 1
U64_MAX = (1 << 64) - 1
#: Deeper nesting is refused: neither writer nor reader shall hit Python's recursion limit.
MAX_DEPTH = 64

_UNKNOWN_ALLOWED: ContextVar[bool] = ContextVar("unknown_allowed", default=False)


class Malformed(ValueError):
    """A value at `path` of a document is not what belongs there."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path
        self.problem = problem


def canonical(value: object) -> bytes:
    """Return the one JSON text that ``value`` has: sorted keys, ASCII, no white space."""
    try:
        text = json.dumps(
            value,
            default=as_object,
            sort_keys=True,
            separators=(",", ":"),
            allow_nan=False,
        )
    except (TypeError, ValueError, RecursionError) as error:
        raise Malformed("manifest", f"cannot be written as JSON: {error}") from error
    return text.encode("ascii")


def as_object(value: object) -> dict[str, Any]:
    """Return the fields of a record, by name; not those of records within."""
    try:
        return {name: getattr(value, name) for name in value.__dataclass_fields__}  # type: ignore[attr-defined]
    except AttributeError:
        raise TypeError(f"{type(value).__name__} is not a JSON value") from None


def parse(raw: bytes) -> Any:
    """Return the document in ``raw``; refuse what two readers could read differently."""
    try:
        return json.loads(
            raw.decode("ascii"), object_pairs_hook=_unique_keys, parse_constant=_no_constant
        )
    except (ValueError, RecursionError) as error:
        raise Malformed("manifest", f"is not JSON: {error}") from error


@contextmanager
def unknown_fields_allowed(allowed: bool) -> Iterator[None]:
    """Let checks of records pass over fields they do not know: the document is a newer one."""
    before = _UNKNOWN_ALLOWED.set(allowed)
    try:
        yield
    finally:
        _UNKNOWN_ALLOWED.reset(before)


def record(cls: type[T]) -> Check:
    """Return the check of an object with exactly the fields of ``cls``."""
    hints = get_type_hints(cls, include_extras=True)
    checks: dict[str, Check] = {name: hint.__metadata__[0] for name, hint in hints.items()}

    def check(value: Any, path: str) -> T:
        if type(value) is not dict:
            raise Malformed(path, f"expected an object, found {_shown(value)}")
        extra = value.keys() - checks.keys()
        if extra and not _UNKNOWN_ALLOWED.get():
            raise Malformed(f"{path}.{min(extra)}", "is an unknown field")
        arguments = {}
        for name, inner in checks.items():
            if name not in value:
                raise Malformed(f"{path}.{name}", "is missing")
            arguments[name] = inner(value[name], f"{path}.{name}")
        return cls(**arguments)

    return check


def array(item: Check) -> Check:
    """Return the check of a list whose items all pass ``item``."""

    def check(value: Any, path: str) -> tuple[Any, ...]:
        if type(value) is not list:
            raise Malformed(path, f"expected a list, found {_shown(value)}")
        return tuple(item(each, f"{path}[{i}]") for i, each in enumerate(value))

    return check


def optional(inner: Check) -> Check:
    """Return a check that lets null pass beside what ``inner`` lets pass."""
    return lambda value, path: None if value is None else inner(value, path)


def integer(low: int, high: int) -> Check:
    """Return the check of a whole number from ``low`` to ``high``."""

    def check(value: Any, path: str) -> int:
        if type(value) is not int or not low <= value <= high:
            raise Malformed(
                path, f"expected an integer from {low} to {high}, found {_shown(value)}"
            )
        return value

    return check


def text(longest: int) -> Check:
    """Return the check of a string of at most ``longest`` characters."""

    def check(value: Any, path: str) -> str:
        if type(value) is not str or len(value) > longest:
            raise Malformed(
                path, f"expected text of at most {longest} characters, found {_shown(value)}"
            )
        return value

    return check


def hexadecimal(digits: int) -> Check:
    """Return the check of a string of exactly ``digits`` lower-case hexadecimal digits."""

    def check(value: Any, path: str) -> str:
        if type(value) is not str or len(value) != digits or set(value) - set("0123456789abcdef"):
            raise Malformed(path, f"expected {digits} hexadecimal digits, found {_shown(value)}")
        return value

    return check


def member(enum: type[E]) -> Check:
    """Return the check of a value of ``enum``."""

    def check(value: Any, path: str) -> E:
        if type(value) is not int or value not in enum._value2member_map_:
            raise Malformed(path, f"expected a {enum.__name__}, found {_shown(value)}")
        return enum(value)

    return check


def one_of(*values: str) -> Check:
    """Return the check of a string that is one of ``values``."""

    def check(value: Any, path: str) -> str:
        if type(value) is not str or value not in values:
            raise Malformed(path, f"expected one of {', '.join(values)}, found {_shown(value)}")
        return value

    return check


def timestamp(value: Any, path: str) -> float:
    """Check seconds since 1970, a float."""
    if type(value) is not float or not 0 <= value < 1e12:
        raise Malformed(path, f"expected seconds since 1970, found {_shown(value)}")
    return value


def json_object(value: Any, path: str) -> dict[str, JSON]:
    """Check an object of JSON values, of bounded depth."""
    if type(value) is not dict:
        raise Malformed(path, f"expected an object, found {_shown(value)}")
    _check_json(value, path, MAX_DEPTH)
    return value


u32 = integer(0, U32_MAX)
u64 = integer(0, U64_MAX)
i32 = integer(-(1 << 31), (1 << 31) - 1)


def _check_json(value: Any, path: str, depth: int) -> None:
    if depth == 0:
        raise Malformed(path, f"is nested deeper than {MAX_DEPTH} levels")
    if type(value) is dict:
        for key, each in value.items():
            _check_json(each, f"{path}.{key}", depth - 1)
    elif type(value) is list:
        for i, each in enumerate(value):
            _check_json(each, f"{path}[{i}]", depth - 1)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object has the same key twice")
    return found


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _shown(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else shown[:77] + "..."
