"""Rules that let the emulated device fail: read and checked at the start of a server.

A rule says at which calls of which functions what happens. They come as JSON, a list of objects,
or as ``@PATH`` of a file that has such a list.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from outlast.cuda_types import STICKY_RESULTS, CUresult
from outlast.settings import Unusable

#: Results of a device that is gone, beside those that end a context.
LOST_RESULTS: Final = STICKY_RESULTS | {46, 999}
MOST_SECONDS: Final = 86_400.0
_COUNT = 1 << 48

_NAMES = """
    cuCtxCreate cuCtxDestroy cuCtxDisablePeerAccess cuCtxEnablePeerAccess cuCtxGetCurrent
    cuCtxGetDevice cuCtxGetFlags cuCtxGetLimit cuCtxPopCurrent cuCtxPushCurrent cuCtxSetCurrent
    cuCtxSetLimit cuCtxSynchronize cuDeviceCanAccessPeer cuDeviceGet cuDeviceGetAttribute
    cuDeviceGetCount cuDeviceGetName cuDeviceGetP2PAttribute cuDeviceGetUuid
    cuDevicePrimaryCtxGetState cuDevicePrimaryCtxRelease cuDevicePrimaryCtxReset
    cuDevicePrimaryCtxRetain cuDevicePrimaryCtxSetFlags cuDeviceTotalMem cuDriverGetVersion
    cuEventCreate cuEventDestroy cuEventElapsedTime cuEventQuery cuEventRecord
    cuEventSynchronize cuFuncGetAttribute cuFuncGetParamInfo cuFuncSetAttribute cuGetErrorName
    cuGetErrorString cuInit cuLaunchCooperativeKernel cuLaunchKernel cuLinkComplete
    cuMemAddressFree cuMemAddressReserve cuMemAlloc cuMemAllocAsync cuMemCreate
    cuMemExportToShareableHandle cuMemFree cuMemFreeAsync cuMemGetAddressRange
    cuMemGetAllocationGranularity cuMemGetInfo cuMemImportFromShareableHandle cuMemMap
    cuMemRelease cuMemSetAccess cuMemUnmap cuMemcpy2D cuMemcpy2DAsync cuMemcpyDtoD
    cuMemcpyDtoDAsync cuMemcpyDtoH cuMemcpyDtoHAsync cuMemcpyHtoD cuMemcpyHtoDAsync cuMemsetD16
    cuMemsetD16Async cuMemsetD2D16Async cuMemsetD2D32Async cuMemsetD2D8Async cuMemsetD32
    cuMemsetD32Async cuMemsetD8 cuMemsetD8Async cuModuleGetFunction cuModuleGetGlobal
    cuModuleLoadData cuModuleUnload cuOccupancyAvailableDynamicSMemPerBlock
    cuOccupancyMaxActiveBlocksPerMultiprocessor
    cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags cuStreamCreate
    cuStreamCreateWithPriority cuStreamDestroy cuStreamGetFlags cuStreamGetPriority
    cuStreamQuery cuStreamSynchronize cuStreamWaitEvent
"""
#: CUDA's names of what a rule can be about; the device may have several ways to do one.
FUNCTIONS: Final = frozenset(_NAMES.split())

#: Fields of every rule, and those that an action adds to them.
COMMON = {"match", "action", "session", "device", "after", "every", "times", "p", "seed", "count"}
ACTIONS: dict[str, frozenset[str]] = {
    "return": frozenset({"result"}),
    "sticky": frozenset({"result"}),
    "lost": frozenset({"result"}),
    "hang": frozenset({"seconds"}),
    "slow": frozenset({"seconds", "gb_per_s"}),
    "kill": frozenset({"middle"}),
    "flip": frozenset({"allocation", "offset", "bit"}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRule:
    """One rule; its fields are those of the JSON."""

    number: int
    match: re.Pattern[str]
    action: str
    #: Only in the session of this name.
    session: str | None = None
    #: Only in a context of this device.
    device: int | None = None
    #: So many matching calls pass first.
    after: int = 0
    every: int = 1
    #: How often it fires in a session, whatever becomes of its workers; None: always.
    times: int | None = 1
    p: float = 1.0
    seed: int = 0
    #: Whether calls are counted in each ``worker`` anew, or in the ``session``.
    count: str = "worker"
    result: int = 0
    seconds: float | None = None
    gb_per_s: float | None = None
    middle: bool = False
    allocation: int = 1
    offset: int = 0
    bit: int = 0

    def names(self, function: str) -> bool:
        """Return whether it is about a function, by CUDA's name."""
        return self.match.fullmatch(function) is not None


def fault_rules(text: str) -> str:
    """Parse rules, or ``none``; return them as JSON, with the content of a file in its place."""
    text = text.strip()
    if text == "none":
        return ""
    if text.startswith("@"):
        path = Path(text[1:]).expanduser()
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError, ValueError, RuntimeError) as error:
            raise Unusable(f"allowed: rules in a file that can be read ({error})") from None
    read_rules(text)
    return text


def read_rules(text: str) -> list[FaultRule]:
    """Return the rules that a JSON text has.

    Raises
    ------
    Unusable
        A rule cannot be used; the text names it and its field.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Unusable(
            f"allowed: JSON, a list of rules, or @PATH of such a file ({error})"
        ) from None
    if not isinstance(found, list) or not found:
        raise Unusable("allowed: JSON, a list of one or more rules")
    return [_rule(number, entry) for number, entry in enumerate(found, 1)]


def _rule(number: int, entry: object) -> FaultRule:
    if not isinstance(entry, dict):
        raise Unusable(f"rule {number}: allowed: an object")
    action = entry.get("action")
    if not isinstance(action, str) or action not in ACTIONS:
        raise _bad(number, "action", f"one of {', '.join(ACTIONS)}")
    fields: dict[str, Any] = {}
    for name, value in entry.items():
        if name not in COMMON | ACTIONS[action]:
            known = ", ".join(sorted(COMMON | ACTIONS[action]))
            raise _bad(number, str(name), f"with action {action}: {known}")
        fields[name] = _value(number, name, value)
    if "match" not in fields:
        raise _bad(number, "match", "a regular expression of CUDA functions' names; it is missing")
    fields.setdefault("result", {"sticky": 700, "lost": 46}.get(action, 0))
    rule = FaultRule(number=number, **fields)
    _check_names(rule)
    _check_action(rule)
    return rule


def _check_names(rule: FaultRule) -> None:
    matched = [name for name in FUNCTIONS if rule.names(name)]
    if not matched:
        raise _bad(rule.number, "match", "what matches a whole name of a function that there is")
    copies = all(name.startswith("cuMemcpy") for name in matched)
    for field in ("middle", "gb_per_s"):
        if getattr(rule, field) and not copies:
            raise _bad(rule.number, field, "only where all that matches are copies (cuMemcpy...)")


def _check_action(rule: FaultRule) -> None:
    number, action, result = rule.number, rule.action, rule.result
    known = result in {int(code) for code in CUresult} and result != 0
    if action == "return" and (not known or result in STICKY_RESULTS):
        raise _bad(number, "result", "a CUresult that ends no context; for others take sticky")
    if action == "sticky" and result not in STICKY_RESULTS:
        raise _bad(number, "result", f"one of {', '.join(map(str, sorted(STICKY_RESULTS)))}")
    if action == "lost" and not (known and result in LOST_RESULTS):
        raise _bad(number, "result", f"one of {', '.join(map(str, sorted(LOST_RESULTS)))}")
    if action == "slow" and rule.seconds is None and rule.gb_per_s is None:
        raise _bad(number, "seconds", "a number, here or in gb_per_s; both are missing")


def _value(number: int, name: str, value: Any) -> Any:
    if value is None and name in ("times", "session", "device", "seconds"):
        return None
    if name in ("match", "action", "session"):
        if not isinstance(value, str) or not value:
            raise _bad(number, name, "a text")
        return _pattern(number, value) if name == "match" else value
    if name == "count":
        if value not in ("worker", "session"):
            raise _bad(number, name, "worker, session")
        return value
    if name == "middle":
        if not isinstance(value, bool):
            raise _bad(number, name, "true, false")
        return value
    if name in ("p", "seconds", "gb_per_s"):
        return _decimal(number, name, value)
    return _whole(number, name, value)


def _pattern(number: int, text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise _bad(number, "match", f"a regular expression ({error})") from None


def _decimal(number: int, name: str, value: Any) -> float:
    most = 1.0 if name == "p" else MOST_SECONDS
    allowed = f"a number {'of 0' if name == 'p' else 'above 0'}, at most {most:g}"
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise _bad(number, name, allowed)
    if not (0 <= value <= most) or (value == 0 and name != "p"):
        raise _bad(number, name, allowed)
    return float(value)


def _whole(number: int, name: str, value: Any) -> int:
    least = 1 if name in ("every", "times", "allocation") else 0
    most = {"device": 15, "bit": 7, "result": 999}.get(name, _COUNT)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise _bad(number, name, f"a whole number from {least} to {most}")
    return value


def _bad(number: int, field: str, allowed: str) -> Unusable:
    return Unusable(f"rule {number}, field {field}: allowed: {allowed}")
