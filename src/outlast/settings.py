"""What a setting is: its name, flag, environment variable, default and parser.

A process's settings are the fields of one frozen dataclass (see `outlast.config`); each field
carries its `Setting`. `resolve` fills such a class from flags, environment and defaults, in
this order, and names setting, source, value and what is allowed when a value cannot be used.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from outlast.errors import ConfigError
from outlast.log import redact

T = TypeVar("T")
C = TypeVar("C")

#: Source of a value that nobody set.
DEFAULT = "the default"


class Unusable(ValueError):
    """A value is not allowed; the text says what is."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of a process, as the command line and the documentation show it."""

    #: Turns text into the value, or raises `Unusable` with what is allowed.
    parse: Callable[[str], Any]
    doc: str
    env: str
    #: ``--name`` on the command line; empty for what only the environment sets.
    flag: str = ""
    #: The default as documentation shows it.
    default: str = ""
    #: What stands for the value in ``--help``; empty for a switch.
    metavar: str = ""
    #: Whether messages must not show the value.
    secret: bool = False
    #: What the flag stands for without a value; empty if it takes one.
    bare: str = ""


def setting(
    parse: Callable[[str], T],
    default: T | Callable[[], T],
    doc: str,
    *,
    env: str,
    flag: str = "",
    shown: str = "",
    metavar: str = "VALUE",
    secret: bool = False,
    bare: str = "",
) -> Any:
    """Return a dataclass field that carries a `Setting`.

    Parameters
    ----------
    parse
        Parser of the text form.
    default
        The value, or what makes it when a configuration is built.
    doc
        One sentence for ``--help`` and the documentation.
    env, flag
        Environment variable; command line flag, if there is one.
    shown
        The default as text, where ``str(default)`` is not what a user would write.
    metavar, secret, bare
        See `Setting`.
    """
    text = shown or str(default)
    entry = Setting(parse, doc, env, flag, text, "" if parse is switch else metavar, secret, bare)
    if callable(default):
        return dataclasses.field(
            default_factory=default, repr=not secret, metadata={"setting": entry}
        )
    return dataclasses.field(default=default, repr=not secret, metadata={"setting": entry})


def settings_of(config: type[Any]) -> dict[str, Setting]:
    """Return the settings of a configuration class by field name."""
    return {
        field.name: field.metadata["setting"]
        for field in dataclasses.fields(config)
        if "setting" in field.metadata
    }


def resolve(
    config: Callable[..., C],
    table: Mapping[str, Setting],
    flags: Mapping[str, str | None],
    environ: Mapping[str, str],
) -> C:
    """Build a configuration: a flag wins over the environment, that over the default.

    An empty environment variable counts as unset.

    Raises
    ------
    ConfigError
        A value cannot be used.
    """
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for name, entry in table.items():
        text = flags.get(name)
        source = entry.flag
        if text is None:
            text, source = environ.get(entry.env) or None, entry.env
        if text is None:
            continue
        try:
            values[name] = entry.parse(text)
        except Unusable as error:
            raise unusable(name, source, text, str(error), secret=entry.secret) from None
        sources[name] = source
    return config(**values, sources=sources)


def unusable(
    name: str, source: str, value: object, allowed: str, *, secret: bool = False
) -> ConfigError:
    """Return the error for a value that cannot be used."""
    shown = "the value given (not shown)" if secret else repr(_shorten(redact(str(value))))
    return ConfigError(
        f"{name} from {source}: {shown} cannot be used; {allowed}",
        setting=name,
        source=source,
        value=None if secret else value,
        allowed=allowed,
    )


def switch(text: str) -> bool:
    """Parse a yes or no."""
    answer = {
        **dict.fromkeys(("1", "true", "yes", "on"), True),
        **dict.fromkeys(("0", "false", "no", "off"), False),
    }.get(text.strip().lower())
    if answer is None:
        raise Unusable("allowed: 1, true, yes, on, 0, false, no, off")
    return answer


def _shorten(text: str, limit: int = 120) -> str:
    return text if len(text) <= limit else f"{text[:limit]}..."
