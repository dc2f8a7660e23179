"""Finding providers by name: the built-in ones and the plug-ins that are installed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

from outlast.checkpoint_providers.base import CheckpointProvider
from outlast.checkpoint_providers.wrappers import FaultyProvider
from outlast.errors import CheckpointError, ProviderNotFound

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP: Final = "outlast.checkpoint_providers"
#: Known without an installed distribution; a plug-in cannot replace them.
BUILT_IN: Final = {
    "directory": "outlast.checkpoint_providers.directory:DirectoryProvider",
    "memory": "outlast.checkpoint_providers.memory:MemoryProvider",
}


def open_provider(
    spec: str,
    state_directory: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> CheckpointProvider:
    """Return the provider that ``spec`` names.

    Parameters
    ----------
    spec
        ``name`` or ``name:argument``, as in ``directory:/var/lib/outlast``.
    state_directory
        Where the process keeps its files; a provider without argument may use it.
    environment
        Variables to use in place of the process's; ``LUPINE_CHECKPOINT_FAULTS`` makes the
        provider fail as it says.

    Raises
    ------
    ProviderNotFound
        No provider has this name.
    CheckpointError
        The plug-in of this name is broken.
    ConfigError
        The argument or the faults cannot be used.
    """
    name, _, argument = spec.partition(":")
    provider = load_provider(name).from_spec(argument, state_directory)
    variables = os.environ if environment is None else environment
    return FaultyProvider.from_environment(provider, variables)


def known_providers() -> tuple[str, ...]:
    """Return the names of all providers, sorted."""
    return tuple(sorted({*_plug_ins(), *BUILT_IN}))


def load_provider(name: str) -> type[CheckpointProvider]:
    """Return the class of the provider ``name``, importing it now.

    Raises
    ------
    ProviderNotFound
        No provider has this name.
    CheckpointError
        The plug-in of this name is broken.
    """
    if name in BUILT_IN:
        module, _, attribute = BUILT_IN[name].partition(":")
        built_in: type[CheckpointProvider] = getattr(import_module(module), attribute)
        return built_in
    entry = _plug_ins().get(name)
    if entry is None:
        known = ", ".join(known_providers())
        raise ProviderNotFound(
            f"no checkpoint provider is called {name!r}; known: {known}", provider=name
        )
    try:
        found = entry.load()
    except Exception as error:  # a plug-in's import may raise whatever it likes
        raise CheckpointError(
            f"{_origin(entry)} cannot be loaded: {type(error).__name__}: {error}", provider=name
        ) from error
    if not (isinstance(found, type) and issubclass(found, CheckpointProvider)):
        raise CheckpointError(f"{_origin(entry)} is no CheckpointProvider class", provider=name)
    return found


def _plug_ins() -> dict[str, EntryPoint]:
    # Late: it reads what every installed package says of itself, and every start of a server
    # and of a worker would wait for that.
    from importlib.metadata import entry_points

    return {entry.name: entry for entry in entry_points(group=GROUP)}


def _origin(entry: EntryPoint) -> str:
    package = f" of package {entry.dist.name!r}" if entry.dist is not None else ""
    return f"checkpoint provider {entry.name!r}{package} ({entry.value})"
