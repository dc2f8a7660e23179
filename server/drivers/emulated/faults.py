"""Faults that rules let happen on the emulated device.

Only functions that a rule names are wrapped, so there is nothing to pay for those that no rule
names. What happens on the device happens at its place in the order of its work: the engine calls
back.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import mmap
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from outlast.errors import ConfigError
from outlast.fault_rules import FaultRule, read_rules
from outlast.server.drivers.base import Driver
from outlast.server.drivers.emulated.driver import EmulatedDriver
from outlast.server.drivers.emulated.engine import LAUNCH_TIMEOUT
from outlast.server.drivers.emulated.engine_layout import CONTROL
from outlast.server.drivers.emulated.fault_calls import LAUNCHES, calls_of, copied, half, refused
from outlast.server.drivers.emulated.runtime import WORKER_FIELDS

log = logging.getLogger("outlast.server.faults")

_ERROR = CONTROL["error"]
_NO_KERNEL = (1 << 64) - 1
_SLICE = 0.005  # seconds
_PASSED: Any = object()
_Callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
#: Length of what tells rules apart, in front of the counts.
_DIGEST = 32


class Counts:
    """How often each rule's calls came and it fired; in a file they outlive the process.

    Parameters
    ----------
    rules : str
        The text of the rules; with others, counting begins anew.
    number : int
        How many there are.
    path : Path, optional
        The file; None: they are this process's alone.
    """

    def __init__(self, rules: str, number: int, path: Path | None = None) -> None:
        size, digest = _DIGEST + 16 * number, hashlib.sha256(rules.encode()).digest()
        if path is None:
            self._memory = mmap.mmap(-1, size)
        else:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                if os.pread(file, _DIGEST, 0) != digest:
                    os.ftruncate(file, 0)
                os.ftruncate(file, size)
                self._memory = mmap.mmap(file, size)
            finally:
                os.close(file)
        self._memory[:_DIGEST] = digest
        self._words = memoryview(self._memory)[_DIGEST:].cast("Q")

    def called(self, rule: FaultRule) -> int:
        """Count a call; return its number in the session."""
        self._words[2 * rule.number - 2] += 1
        return self._words[2 * rule.number - 2]

    def spent(self, rule: FaultRule) -> bool:
        """Return whether a rule has fired as often as it may."""
        return rule.times is not None and self._words[2 * rule.number - 1] >= rule.times

    def fired(self, rule: FaultRule) -> None:
        """Count a firing."""
        self._words[2 * rule.number - 1] += 1

    def close(self) -> None:
        """Close the file; the counts stay in it."""
        self._words.release()
        self._memory.close()


def inject(driver: Driver, text: str, session: str, lock: Path) -> Faults:
    """Let a session's device fail by rules; the counts stand beside the session's lock.

    Raises
    ------
    ConfigError
        It is no emulated device, or the counts cannot be kept.
    """
    if not isinstance(driver, EmulatedDriver):
        raise ConfigError(f"rules of faults are for the emulated device, not for {driver.name}")
    rules = read_rules(text)
    path = lock.with_suffix(".faults")
    try:
        counts = Counts(text, len(rules), path)
    except OSError as error:
        raise ConfigError(
            f"the counts of the fault rules cannot be kept in {path}: {error}"
        ) from error
    return Faults(driver, rules, session, counts)


class Faults:
    """Watches the calls of a driver and does what the rules say.

    Parameters
    ----------
    driver : EmulatedDriver
        Its methods that a rule names are wrapped.
    rules : sequence of FaultRule
        Looked at in this order.
    session : str
        Name of the session.
    counts : Counts
        Of these rules in this session.
    """

    def __init__(
        self, driver: EmulatedDriver, rules: Sequence[FaultRule], session: str, counts: Counts
    ) -> None:
        self._driver, self._session, self._counts = driver, session, counts
        #: Calls of each rule in this process.
        self._calls = dict.fromkeys((rule.number for rule in rules), 0)
        self._lock = threading.Lock()
        self._thread = threading.local()
        self._block = (ctypes.c_uint64 * len(WORKER_FIELDS))()
        mine = [rule for rule in rules if rule.session in (None, session)]
        for method, names in calls_of(driver).items():
            wanted = [rule for rule in mine if any(map(rule.names, names))]
            if wanted:
                setattr(driver, method, self._wrapped(method, names, wanted))

    def _wrapped(
        self, method: str, names: tuple[str, ...], rules: list[FaultRule]
    ) -> Callable[..., Any]:
        original, thread = getattr(self._driver, method), self._thread

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if getattr(thread, "inside", False):  # one call of a program counts once
                return original(*args, **kwargs)
            thread.inside = True
            try:
                for rule in rules:
                    if self._is_due(rule):
                        name = next(filter(rule.names, names))
                        result = self._fire(rule, method, name, original, args)
                        if result is not _PASSED:
                            return result
                # Looked up again: the device may be lost by now.
                found = self._lost(method) or original
                return found(*args, **kwargs)
            finally:
                thread.inside = False

        return call

    def _lost(self, method: str) -> Callable[..., Any] | None:
        found = self._driver.__dict__.get(method)
        return found if getattr(found, "is_lost", False) else None

    def _is_due(self, rule: FaultRule) -> bool:
        if rule.device is not None:
            context = self._driver._current.context
            if context is None or context.device.info.ordinal != rule.device:
                return False
        with self._lock:
            self._calls[rule.number] += 1
            lasting = self._counts.called(rule)
            number = lasting if rule.count == "session" else self._calls[rule.number]
            behind = number - rule.after - 1
            if behind < 0 or behind % rule.every or self._counts.spent(rule):
                return False
            if rule.p < 1.0:
                # Of the call's number, so that a replay throws the same dice.
                dice = random.Random(f"{rule.seed}/{rule.number}/{self._session}/{number}")
                if dice.random() >= rule.p:
                    return False
            self._counts.fired(rule)
            return True

    def _fire(
        self,
        rule: FaultRule,
        method: str,
        name: str,
        original: Callable[..., Any],
        args: tuple[Any, ...],
    ) -> Any:
        """Do what a rule says; return the call's result, or `_PASSED` to have it made."""
        log.warning(
            "fault rule %d fires: %s in %s", rule.number, rule.action, name,
            extra={
                "action": "fault_injected",
                "rule": rule.number,
                "function": name,
                "session": self._session,
                "seq": self._driver.tag,
            },
        )  # fmt: skip
        if rule.action == "return":
            return refused(self._driver, method, rule.result)
        if rule.action == "kill":
            if rule.middle:
                original(*half(method, args))
                self._driver.engine.finish(self._driver.engine.issued)
            os.kill(os.getpid(), signal.SIGKILL)
        elif rule.action == "sticky":
            self._fail(rule.result)
        elif rule.action == "lost":
            self._lose(rule.result)
        elif rule.action == "hang":
            self._enqueue(lambda: self._hang(rule.seconds), self._kernel(method, args))
        elif rule.action == "slow":
            seconds = rule.seconds or 0.0
            if rule.gb_per_s is not None:
                seconds += copied(method, args) / (rule.gb_per_s * 1e9)
            self._enqueue(lambda: self._pause(seconds))
        else:
            self._flip(rule)
        return _PASSED

    # -- on the device -------------------------------------------------------------------------

    def _enqueue(self, work: Callable[[], object], kernel: int = _NO_KERNEL) -> int:
        """Have the engine's thread do something in the order of its work; return the ticket."""
        engine = self._driver.engine
        function = _Callback(lambda worker, first, count: work() and None)
        address = ctypes.cast(function, ctypes.c_void_p).value or 0
        block = ctypes.addressof(self._block)
        with engine.lock:
            ticket = engine.launch(
                self._driver.tag, address, block, kernel, 1, 1, 1, 1, 1, 1, 0, 0, b""
            )
            engine.keep(function)
        return ticket

    def _fail(self, code: int) -> None:
        """Let what comes behind the work so far fail; the call in hand is the cause."""
        engine = self._driver.engine
        engine.finish(self._enqueue(lambda: engine.fail(code)))

    def _lose(self, code: int) -> None:
        self._fail(code)
        for method in calls_of(self._driver):
            lost = functools.partial(self._refuse, method, code)
            lost.is_lost = True  # type: ignore[attr-defined]
            setattr(self._driver, method, lost)

    def _refuse(self, method: str, code: int, *args: Any, **kwargs: Any) -> Any:
        return refused(self._driver, method, code)

    def _hang(self, seconds: float | None) -> None:
        """Run for ever, as a kernel would: until something ends it."""
        self._pause(float("inf") if seconds is None else seconds)
        self._driver.engine.fail(LAUNCH_TIMEOUT)

    def _pause(self, seconds: float) -> None:
        words, end = self._driver.engine.words, time.monotonic() + seconds
        while not words[_ERROR] and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, _SLICE))

    def _kernel(self, method: str, args: tuple[Any, ...]) -> int:
        """Return the number of the kernel that a call launches."""
        found = self._driver._functions.get(int(args[0])) if method in LAUNCHES and args else None
        return found.number if found is not None else _NO_KERNEL

    def _flip(self, rule: FaultRule) -> None:
        device = 0 if rule.device is None else rule.device
        live = [r for r in self._driver.regions() if r.device == device and r.kind == "alloc"]
        if rule.allocation > len(live) or rule.offset >= live[rule.allocation - 1].size:
            log.warning(
                "fault rule %d flips nothing: no byte %d in allocation %d of %d",
                *(rule.number, rule.offset, rule.allocation, len(live)),
                extra={"action": "fault_missed", "rule": rule.number},
            )
            return
        address = live[rule.allocation - 1].address + rule.offset
        self._enqueue(lambda: _flip_bit(address, rule.bit))


def _flip_bit(address: int, bit: int) -> None:
    ctypes.c_ubyte.from_address(address).value ^= 1 << bit
