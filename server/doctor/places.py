"""Findings on where a server listens and writes."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import zmq

from outlast import migrations
from outlast.checkpoint_providers import open_provider
from outlast.checkpoint_providers.directory import DirectoryProvider
from outlast.config import ServeConfig
from outlast.errors import OutlastError
from outlast.server.doctor.finding import Finding, failure, ok, size_text, warning
from outlast.server.locks import LifetimeLock
from outlast.session.store import Store
from outlast.values import is_loopback

#: Written and made durable to learn how fast the store is.
SAMPLE = 64 << 20  # bytes
#: A save also reads everything back and hashes it: it takes about twice the writing.
SAVING = 2.0
#: Epochs that are kept of a session, and the one that is being written.
EPOCHS = 3


def port(config: ServeConfig, running: bool) -> Finding:
    """Return whether the address can be listened at.

    Parameters
    ----------
    running
        A server uses this state folder: then it is likely that one who has the port.
    """
    with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
        socket.linger = 0
        try:
            socket.bind(config.bind)
        except zmq.ZMQError as error:
            reason = zmq.strerror(error.errno or 0)
            if running:
                return ok("port", f"{config.bind} is taken: a server runs")
            return failure("port", f"{config.bind}: {reason}; name another with --bind")
    if not is_loopback(config.bind):
        return warning("port", f"{config.bind}: whoever reaches it can use the device (--insecure)")
    return ok("port", f"{config.bind} is free")


def state(config: ServeConfig) -> tuple[Finding, bool]:
    """Return whether the state folder can be used, and whether a server runs on it."""
    folder = config.state_dir
    try:
        lock = LifetimeLock(folder / "server.lock")
    except OSError as error:
        text = f"{folder}: {error.strerror}; let this user write there, or name another (--state)"
        return failure("state", text), False
    try:
        if not lock.try_acquire():
            return ok("state", f"{folder} is used by the server with process {lock.owner()}"), True
        return ok("state", f"{folder} can be written"), False
    finally:
        lock.release()


def database(config: ServeConfig) -> Finding:
    """Return whether the journal answers and which revision it has."""
    try:
        store = Store.open(config.database)
    except OutlastError as error:
        return failure("journal", str(error))
    try:
        found, head = migrations.current_revision(store.engine), migrations.head_revision()
        kind = store.engine.dialect.name
        if found is None:
            return ok("journal", f"{kind}, empty: the first server prepares it")
        if found == head:
            count = len(store.sessions())
            return ok("journal", f"{kind}, revision {found}, {count} sessions")
        return warning("journal", f"{kind}, revision {found}: the next server makes it {head}")
    except OutlastError as error:
        return failure("journal", str(error))
    finally:
        store.close()


def checkpoints(config: ServeConfig, memory: int) -> Iterator[Finding]:
    """Yield whether epochs can be stored, how much room there is and how long a save takes.

    Parameters
    ----------
    memory
        Bytes of all devices.
    """
    try:
        provider = open_provider(config.provider, config.state_dir)
        provider.check()
    except OutlastError as error:
        yield failure("checkpoints", str(error))
        return
    if not provider.durable:
        yield warning("checkpoints", f"{config.provider} keeps nothing when the server ends")
    if not isinstance(provider, DirectoryProvider):
        return
    root = provider.root
    yield _room(root, memory)
    yield from _speed(root, memory, config.grace)


def _room(root: Path, memory: int) -> Finding:
    free, needed = shutil.disk_usage(root).free, EPOCHS * memory
    text = f"{root}: {size_text(free)} free"
    if free >= needed:
        return ok("room", f"{text}, enough for {EPOCHS} epochs of all device memory")
    return warning(
        "room",
        f"{text}; {EPOCHS} epochs of all device memory take {size_text(needed)}: sessions of more "
        f"than {size_text(free / EPOCHS)} together will not be saved",
    )


def _speed(root: Path, memory: int, grace: float) -> Iterator[Finding]:
    try:
        rate = _write_rate(root)
    except OSError as error:
        yield warning("speed", f"{root}: {error.strerror}")
        return
    full = SAVING * memory / rate
    text = f"{size_text(rate)}/s written: saving all {size_text(memory)} takes about {full:.0f} s"
    if full <= grace:
        yield ok("speed", f"{text}, --grace gives {grace:g} s")
    else:
        fits = size_text(grace * rate / SAVING)
        yield warning(
            "speed",
            f"{text}, --grace gives {grace:g} s: enough for {fits}; give it more, or "
            "hand memory over with SIGUSR2",
        )


def _write_rate(root: Path) -> float:
    """Return the bytes a second of a durable write."""
    path = root / f".doctor.{secrets.token_hex(4)}"
    data = secrets.token_bytes(1 << 20)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        began = time.perf_counter()
        for _ in range(SAMPLE // len(data)):
            os.write(descriptor, data)
        os.fsync(descriptor)
        return SAMPLE / (time.perf_counter() - began)
    finally:
        os.close(descriptor)
        with contextlib.suppress(OSError):
            path.unlink()
