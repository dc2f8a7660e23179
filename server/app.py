"""``outlast serve``: the lock on the state folder, a first worker, signals, then the gateway."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import logging
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from outlast.config import ServeConfig
from outlast.errors import (
    CheckpointError,
    ConfigError,
    OutlastError,
    ProviderNotFound,
    TakeOverFailed,
)
from outlast.server.drivers import registry
from outlast.server.locks import TAKE_OVER, LifetimeLock, holder_of
from outlast.server.pool import WorkerPool
from outlast.settings import DEFAULT

if TYPE_CHECKING:
    from outlast.server.takeover import TakeOver

log = logging.getLogger(__name__)

#: What a server acts on (`Gateway`).
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)


def serve(config: ServeConfig) -> int:
    """Run a session server until it is told to stop.

    Returns
    -------
    int
        0: every session is saved; 3: one is not, and is named in the log.

    Raises
    ------
    ConfigError
        A setting cannot be used, no checkpoint can be stored, or another server uses the
        state folder.
    TakeOverFailed
        That server was to be replaced, and cannot be.
    """
    lock = _state_lock(config.state_dir)
    device = registry.require(config.device, config.state_dir / "gpu_found")
    if config.emulated_faults and device != "emulated":
        lock.release()
        raise _no_faults(config, device)
    config = dataclasses.replace(config, device=registry.several(device, config.emulated_devices))
    if config.take_over == "no":
        take_over = None
        _acquire(lock, config)
    else:
        # Late: its libraries would hold up the first worker of any other start.
        from outlast.server.takeover import TakeOver

        take_over = TakeOver(config, lock)
        config = take_over.config
    pool = WorkerPool(config.device)
    _end_at_signals(pool)
    try:
        # It gets its device ready while this process still loads what it needs itself.
        pool.warm(1 if take_over is None else take_over.workers)
        if take_over is None:
            pool.warm(_waiting(config.state_dir))
        return _serve(config, pool, take_over)
    finally:
        pool.close()
        # The outcome stands. While Python ends it gives handled signals their deadly default
        # back, and another SIGTERM would take the exit code's place.
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)


def _no_faults(config: ServeConfig, device: str) -> ConfigError:
    source = config.sources.get("emulated_faults", DEFAULT)
    return ConfigError(
        f"emulated_faults from {source}: rules of faults are for the emulated device, and this "
        f"server has {device}; allowed with --device emulated"
    )


def _serve(config: ServeConfig, pool: WorkerPool, take_over: TakeOver | None) -> int:
    """Load the rest, and serve in the place of the server that may still run."""
    gc.disable()  # what is loaded now stays: there is nothing to collect
    from outlast.server.gateway import Gateway

    signal_fd = _signal_descriptor() if take_over is None else -1
    _check_provider(config)
    gateway = Gateway(config, _server_id(config.state_dir), pool)
    gc.freeze()
    gc.enable()
    if take_over is not None:
        take_over.prepare(gateway, pool)
        take_over.take()
        # Not before: as long as this is not the server, a signal ends it at once.
        signal_fd = _signal_descriptor()
    try:
        return gateway.run(signal_fd)
    except OutlastError as error:
        if take_over is None or gateway.serving:
            raise
        raise TakeOverFailed(
            f"{error}; the server before has made way and its sessions wait for the next one: "
            "start it without --take-over"
        ) from error


def _waiting(state: Path) -> int:
    """Return how many sessions wait for a worker that maps their memory."""
    from outlast.server.kept import KeptMemory  # late: the first worker is on its way by now

    kept = KeptMemory(state)
    try:
        return kept.count()
    finally:
        kept.close()


def _acquire(lock: LifetimeLock, config: ServeConfig) -> None:
    """Take the lock of the state folder.

    Raises
    ------
    ConfigError
        Another server has it, or is about to.
    """
    # A server that has just been killed gives the lock back within moments.
    if not lock.acquire():
        raise ConfigError(
            f"another server (process {lock.owner()}) uses the state folder {config.state_dir}: "
            "stop it, name another folder with --state, or take its place with --take-over"
        )
    if follower := holder_of(config.state_dir / TAKE_OVER):
        lock.release()
        raise ConfigError(
            f"process {follower} is about to take over the state folder {config.state_dir}: "
            "name another folder with --state"
        )


def _check_provider(config: ServeConfig) -> None:
    """Refuse a provider that no worker could use, before any client comes.

    Raises
    ------
    ConfigError
        There is no such provider, or it cannot be used.
    """
    from outlast.checkpoint_providers import open_provider

    try:
        provider = open_provider(config.provider, config.state_dir)
    except (ProviderNotFound, CheckpointError) as error:
        raise ConfigError(f"provider {config.provider!r} cannot be used: {error}") from error
    provider.check()


def _state_lock(folder: Path) -> LifetimeLock:
    """Make the state folder, if it is not there, and open its lock.

    Raises
    ------
    ConfigError
        The folder cannot be made or written.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return LifetimeLock(folder / "server.lock")
    except OSError as error:
        raise ConfigError(
            f"the state folder {folder} cannot be used: {error.strerror}: {str(error.filename)!r}; "
            "name another folder with --state"
        ) from error


def _end_at_signals(pool: WorkerPool) -> None:
    """Let signals end this process at once, as long as it serves nobody and has nothing to save.

    Its spare workers go with it. By themselves they would see its end only once they are ready.
    """

    def end(*_: object) -> None:
        pool.close()
        os._exit(0)

    for number in SIGNALS:
        if number != signal.SIGINT:  # that raises KeyboardInterrupt
            signal.signal(number, end)


def _signal_descriptor() -> int:
    """Return a descriptor that is readable once a signal to act on has arrived."""
    read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    for number in SIGNALS:
        # The wake-up descriptor does the work; a Python handler must exist for it.
        signal.signal(number, lambda *_: None)
    return read


def _server_id(state_dir: Path) -> str:
    """Return the id of the server that owns this folder: the same after every restart."""
    path = state_dir / "server_id"
    with contextlib.suppress(FileNotFoundError):
        if known := path.read_text().strip():
            return known
    server_id = f"server-{os.urandom(8).hex()}"
    # All or nothing: two servers with an empty id would take each other's sessions.
    new = path.with_suffix(".new")
    new.write_text(server_id)
    new.replace(path)
    return server_id
