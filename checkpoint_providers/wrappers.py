"""A provider that fails as it is told, to try what sessions do then.

Server processes take the rules from ``LUPINE_CHECKPOINT_FAULTS``, a JSON list such as
``[{"stage": "rename", "action": "kill", "call": 2}]``.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import signal
import threading
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, NoReturn

from outlast.checkpoint_providers.base import CANCEL_POLL, CheckpointProvider
from outlast.checkpoint_providers.locations import Location
from outlast.checkpoint_providers.manifest import DATA_FILE, MANIFEST_FILE
from outlast.checkpoint_providers.reader import EpochReader
from outlast.checkpoint_providers.snapshot import Progress, Snapshot, StoredEpoch
from outlast.checkpoint_providers.stages import Stage, StagePoint
from outlast.checkpoint_providers.writer import EpochWriter
from outlast.errors import ConfigError

logger = logging.getLogger(__name__)

FAULTS_VARIABLE: Final = "LUPINE_CHECKPOINT_FAULTS"


class FaultAction(StrEnum):
    """What happens at a stage."""

    #: The storage answers with `FaultRule.errno`.
    FAIL = "fail"
    #: Nothing more happens until the save is cancelled or `FaultyProvider.release` is called.
    HANG = "hang"
    #: The stage takes `FaultRule.seconds` more, or until the save is cancelled.
    SLOW = "slow"
    #: A bit of `FaultRule.file` turns over.
    FLIP = "flip"
    #: `FaultRule.file` loses its end from `FaultRule.position` on.
    TRUNCATE = "truncate"
    #: The process gets SIGKILL.
    KILL = "kill"


@dataclass(frozen=True, slots=True)
class FaultRule:
    """One fault and when it strikes."""

    stage: Stage
    action: FaultAction
    #: Strikes in the nth save (at `Stage.READ`: the nth open), from 1; 0: in every one.
    call: int = 0
    #: Strikes once the stage's offset has reached this many bytes, once a call.
    byte: int = 0
    #: For `FaultAction.FAIL`: number, or in JSON its name.
    errno: int = errno.EIO
    seconds: float = 1.0
    file: str = DATA_FILE
    #: Byte to damage; negative counts from the end. Without it: the middle.
    position: int | None = None
    bit: int = 0

    @classmethod
    def parse(cls, value: Any) -> FaultRule:
        """Return the rule that a JSON object spells.

        Raises
        ------
        ConfigError
            It has an unknown field or value.
        """
        if not isinstance(value, dict):
            raise ConfigError(f"a checkpoint fault is an object, got {value!r}")
        if unknown := value.keys() - {f.name for f in fields(cls)}:
            raise ConfigError(f"a checkpoint fault has no field {min(unknown)!r}")
        arguments = dict(value)
        try:
            arguments["stage"] = Stage(value["stage"])
            arguments["action"] = FaultAction(value["action"])
            if isinstance(number := value.get("errno"), str):
                arguments["errno"] = getattr(errno, number)
        except (KeyError, ValueError, AttributeError) as error:
            raise ConfigError(f"checkpoint fault {value!r}: {error}") from error
        rule = cls(**arguments)
        rule.check()
        return rule

    def check(self) -> None:
        """Refuse values of a wrong type or range.

        Raises
        ------
        ConfigError
            A value cannot be used.
        """
        whole = [self.call, self.byte, self.errno, self.bit]
        whole += [] if self.position is None else [self.position]
        right = (
            all(type(number) is int for number in whole)
            and min(self.call, self.byte, self.bit) >= 0
            and self.bit < 8
            and isinstance(self.seconds, int | float)
            and 0 <= self.seconds <= threading.TIMEOUT_MAX
            and self.file in (DATA_FILE, MANIFEST_FILE)
        )
        if not right:
            raise ConfigError(f"a checkpoint fault has a value out of range: {self}")


class FaultyProvider(CheckpointProvider):
    """Passes everything to ``inner``, and makes it fail by ``rules``."""

    name = "faulty"

    def __init__(self, inner: CheckpointProvider, rules: Sequence[FaultRule]) -> None:
        super().__init__()
        for rule in rules:
            rule.check()
        self.inner = inner
        self.name = inner.name
        self.rules = tuple(rules)
        self._released = threading.Event()
        self._guard = threading.Lock()
        self._saves = 0
        self._opens = 0
        self._saving = _Saving()
        #: The newest open; its reader may be used by any thread.
        self._reading = _Call()
        inner.stage_hook = self._strike

    @classmethod
    def from_spec(cls, argument: str, state_directory: Path | None) -> NoReturn:
        """Refuse: faults are laid over another provider."""
        raise ConfigError(f"set {FAULTS_VARIABLE} to make a provider fail")

    @classmethod
    def from_environment(
        cls, inner: CheckpointProvider, environment: Mapping[str, str]
    ) -> CheckpointProvider:
        """Return ``inner``, under the faults that ``LUPINE_CHECKPOINT_FAULTS`` asks for if any.

        Raises
        ------
        ConfigError
            The variable is not a JSON list of rules.
        """
        text = environment.get(FAULTS_VARIABLE, "").strip()
        if not text:
            return inner
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{FAULTS_VARIABLE} is not JSON: {error}") from error
        if not isinstance(values, list):
            raise ConfigError(f"{FAULTS_VARIABLE} is not a JSON list")
        rules = [FaultRule.parse(value) for value in values]
        logger.warning("Checkpoints of this process fail on purpose: %s", text)
        return cls(inner, rules)

    @property
    def durable(self) -> bool:
        """As of the provider below."""
        return self.inner.durable

    def release(self) -> None:
        """End every hang, those to come too."""
        self._released.set()

    def save(
        self,
        snapshot: Snapshot,
        cancelled: threading.Event | None = None,
        progress: Progress | None = None,
    ) -> StoredEpoch:
        """Store an epoch, or fail by the rules."""
        with self._guard:
            self._saves += 1
            self._saving.call = _Call(self._saves, cancelled)
        return self.inner.save(snapshot, cancelled, progress)

    def open(self, location: str, digest: str | None = None) -> EpochReader:
        """Open a published epoch, whose reads may fail by the rules."""
        with self._guard:
            self._opens += 1
            self._reading = _Call(self._opens)
        return self.inner.open(location, digest)

    def list(self, session_id: str) -> list[StoredEpoch]:
        """Return the published epochs of a session, oldest first."""
        return self.inner.list(session_id)

    def delete(self, location: str) -> None:
        """Remove a published epoch; does nothing if there is none."""
        self.inner.delete(location)

    def clean(self, session_id: str, keep: AbstractSet[str]) -> tuple[str, ...]:
        """Remove what dead writers left, and epochs older than the newest kept one."""
        return self.inner.clean(session_id, keep)

    def check(self) -> None:
        """Check the provider below."""
        self.inner.check()

    def close(self) -> None:
        """End every hang and close the provider below."""
        self.release()
        self.inner.close()

    def _begin(self, location: Location, size: int) -> EpochWriter:
        return self.inner._begin(location, size)

    def _strike(self, point: StagePoint) -> None:
        call = self._reading if point.stage is Stage.READ else self._saving.call
        for index, rule in enumerate(self.rules):
            if (
                rule.stage is point.stage
                and rule.call in (0, call.number)
                and point.offset >= rule.byte
                and index not in call.struck
            ):
                call.struck.add(index)
                self._act(rule, point, call.cancelled)

    def _act(self, rule: FaultRule, point: StagePoint, cancelled: threading.Event | None) -> None:
        match rule.action:
            case FaultAction.FAIL:
                raise OSError(rule.errno, os.strerror(rule.errno))
            case FaultAction.KILL:
                os.kill(os.getpid(), signal.SIGKILL)
            case FaultAction.SLOW:
                (cancelled or self._released).wait(rule.seconds)
            case FaultAction.HANG:
                self._hang(cancelled)
            case FaultAction.FLIP | FaultAction.TRUNCATE:
                _damage(rule, point)

    def _hang(self, cancelled: threading.Event | None) -> None:
        if cancelled is None:
            self._released.wait()
            return
        while not self._released.is_set() and not cancelled.wait(CANCEL_POLL):
            pass


@dataclass(slots=True)
class _Call:
    """A save or an open, and the rules that have struck in it."""

    number: int = 0
    cancelled: threading.Event | None = None
    struck: set[int] = field(default_factory=set)


class _Saving(threading.local):
    """The save that a thread is in."""

    def __init__(self) -> None:
        self.call = _Call()


def _damage(rule: FaultRule, point: StagePoint) -> None:
    if point.folder is None:
        raise ConfigError(f"there is no file to {rule.action} at stage {point.stage}")
    path = point.folder / rule.file
    size = path.stat().st_size
    if size == 0:
        raise ConfigError(f"{path} is empty, there is nothing to {rule.action}")
    position = (size // 2 if rule.position is None else rule.position) % size
    with path.open("r+b") as file:
        if rule.action is FaultAction.TRUNCATE:
            file.truncate(position)
            return
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ (1 << rule.bit)]))
