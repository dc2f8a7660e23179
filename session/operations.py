"""The table of operations: the calls that travel, their records and their replies.

Numbers are forever: an operation is only ever added, a record is only ever extended at its end.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class OpClass(enum.Enum):
    """How a call travels."""

    #: Has no seq and no answer; sets what the records behind it mean.
    CONTROL = "control"
    #: State-changing, nobody waits: fails only by lack of memory or a dead context.
    ONE_WAY = "one-way"
    #: State-changing, its outcome goes back and into the client's log.
    ANSWERED = "answered"
    #: Changes nothing, has no seq, never logged; asked again when unanswered.
    QUERY = "query"


@dataclass(frozen=True, slots=True)
class Field:
    """One field: its name, its type (see `layout.TYPES`) and what it means."""

    name: str
    type: str
    doc: str = ""


@dataclass(frozen=True, slots=True)
class OpSpec:
    """Layout of one operation's record and of its reply."""

    number: int
    name: str
    cls: OpClass
    fields: tuple[Field, ...]
    #: Fields of a successful reply; a reply with an error code has none.
    reply: tuple[Field, ...] = ()
    doc: str = ""


def parse_fields(text: str) -> tuple[Field, ...]:
    """Parse ``"name:type name:type"``."""
    return tuple(Field(*part.split(":")) for part in text.split())


class Op(enum.IntEnum):
    """Numbers of the operations."""

    BIND = 1
    OUTCOME = 2
    MARKED = 3
    WAITED = 4

    PRIMARY_RETAIN = 16
    PRIMARY_RELEASE = 17
    PRIMARY_RESET = 18
    CTX_CREATE = 19
    CTX_DESTROY = 20
    CTX_SYNC = 21
    PEER_ENABLE = 22
    PEER_DISABLE = 23
    CTX_SET_LIMIT = 24
    CTX_GET_LIMIT = 25

    MODULE_LOAD = 32
    MODULE_UNLOAD = 33
    FUNCTION_GET = 34
    FUNCTION_SET_ATTRIBUTE = 35
    IMAGE_PART = 36
    LIBRARY_LOAD = 37
    LIBRARY_MODULE = 38
    LIBRARY_UNLOAD = 39
    KERNEL_GET = 40
    LINK = 41
    LINK_READ = 42
    LINK_DESTROY = 43

    MEM_ALLOC = 48
    MEM_FREE = 49
    MEM_INFO = 50
    MEMSET = 51
    COPY_HTOD = 52
    COPY_DTOH = 53
    COPY_DTOD = 54
    MEM_ALLOC_ASYNC = 55
    MEM_FREE_ASYNC = 56
    MEMSET_2D = 57
    COPY_HTOD_2D = 58
    COPY_DTOH_2D = 59
    COPY_DTOD_2D = 60

    STREAM_CREATE = 64
    STREAM_DESTROY = 65
    STREAM_WAIT_EVENT = 66
    STREAM_QUERY = 67
    STREAM_SYNC = 68

    EVENT_CREATE = 80
    EVENT_DESTROY = 81
    EVENT_RECORD = 82
    EVENT_QUERY = 83
    EVENT_SYNC = 84
    EVENT_ELAPSED = 85

    LAUNCH = 96
    LAUNCH_COOPERATIVE = 97
    OCCUPANCY = 98
    OCCUPANCY_SHARED = 99


_C, _O, _A, _Q = OpClass.CONTROL, OpClass.ONE_WAY, OpClass.ANSWERED, OpClass.QUERY


def _op(op: Op, cls: OpClass, given: str, doc: str, reply: str = "") -> tuple[Op, OpSpec]:
    return op, OpSpec(int(op), op.name, cls, parse_fields(given), parse_fields(reply), doc)


#: Every operation. A query's first field is always the number its answer carries.
OPS: dict[Op, OpSpec] = dict(
    (
        _op(
            Op.BIND,
            _C,
            "thread:u32 context:u64",
            "Caller's thread and current context of the records behind it. Starts each batch.",
        ),
        _op(
            Op.OUTCOME,
            _C,
            "seq:u64 result:i32 value:u64",
            "Recorded outcome of the call `seq` behind it: replay imposes it and sends no reply.",
        ),
        _op(
            Op.MARKED,
            _C,
            "context:u64 number:u64 what:u32 handle:u64",
            "Here the client asked for the end of work: a stream's (`what` is the number of "
            "STREAM_SYNC), an event's record (EVENT_SYNC) or all (CTX_SYNC).",
        ),
        _op(
            Op.WAITED,
            _C,
            "context:u64 number:u64 what:u32 handle:u64",
            "By here the client knew of the end of what it had marked, or, with the number 0, of "
            "what the record itself says. What follows runs behind such work that is replayed.",
        ),
        _op(
            Op.PRIMARY_RETAIN,
            _O,
            "device:u32",
            "Retain the primary context of a device (its handle is a constant).",
        ),
        _op(Op.PRIMARY_RELEASE, _O, "device:u32", "Give one retain back."),
        _op(Op.PRIMARY_RESET, _O, "device:u32", "Destroy all state of a primary context."),
        _op(Op.CTX_CREATE, _A, "handle:u64 device:u32 flags:u32", "Create a context."),
        _op(Op.CTX_DESTROY, _O, "handle:u64", "Destroy a context and all it owns."),
        _op(Op.CTX_SYNC, _Q, "qid:u64", "Answered when all work of the bound context is done."),
        _op(
            Op.PEER_ENABLE,
            _A,
            "peer:u64",
            "Let the bound context use the memory of another context's device, also what is "
            "allocated later.",
        ),
        _op(Op.PEER_DISABLE, _O, "peer:u64", "Take that back, behind the work so far."),
        _op(
            Op.CTX_SET_LIMIT,
            _A,
            "limit:u32 value:u64",
            "Set a limit (`CUlimit`) of the bound context. The outcome's value is the limit then.",
        ),
        _op(
            Op.CTX_GET_LIMIT,
            _Q,
            "qid:u64 limit:u32",
            "Return a limit of the bound context.",
            "value:u64",
        ),
        _op(
            Op.IMAGE_PART,
            _O,
            "handle:u64 data:bytes",
            "A piece of the image that the next load of this handle completes: no frame is "
            "longer than 1 MiB.",
        ),
        _op(
            Op.MODULE_LOAD,
            _A,
            "handle:u64 data:bytes",
            "Load an image (PTX), or the last piece of one. The reply carries its functions and "
            "globals as JSON, so that every later look-up is local.",
            "info:bytes",
        ),
        _op(Op.MODULE_UNLOAD, _O, "handle:u64", "Unload a module."),
        _op(
            Op.FUNCTION_GET,
            _O,
            "handle:u64 module:u64 name:bytes",
            "Name a function of a loaded module; the client knows that it exists.",
        ),
        _op(
            Op.FUNCTION_SET_ATTRIBUTE,
            _A,
            "function:u64 attribute:u32 value:i32",
            "Set a function attribute.",
        ),
        _op(
            Op.LIBRARY_LOAD,
            _A,
            "handle:u64 module:u64 data:bytes",
            "Load an image as a library, and as its module in the bound context; without one "
            "(`module` 0) the image is only checked. The reply carries what MODULE_LOAD's does.",
            "info:bytes",
        ),
        _op(
            Op.LIBRARY_MODULE,
            _A,
            "handle:u64 library:u64",
            "Load a library's module in the bound context.",
            "info:bytes",
        ),
        _op(
            Op.LIBRARY_UNLOAD,
            _O,
            "handle:u64",
            "Unload a library, and its modules in all contexts.",
        ),
        _op(
            Op.KERNEL_GET,
            _O,
            "handle:u64 library:u64 name:bytes",
            "Name a kernel of a library; the client knows that it exists.",
        ),
        _op(
            Op.LINK,
            _A,
            "handle:u64 data:bytes",
            "Link inputs to an image: each is a u32 `CUjitInputType`, the lengths (u32) of its "
            "name and (u64) of its bytes, and these. The outcome's value tells images apart.",
            "size:u64",
        ),
        _op(
            Op.LINK_READ,
            _Q,
            "qid:u64 handle:u64 image:u64 offset:u64 size:u32",
            "Bytes (at most 1 MiB) of the image that LINK has made, with its value.",
            "data:bytes",
        ),
        _op(Op.LINK_DESTROY, _O, "handle:u64", "Forget the image that LINK has made."),
        _op(
            Op.MEM_ALLOC,
            _A,
            "size:u64",
            "Allocate device memory in the bound context. The outcome's value is the address; "
            "replay allocates at it.",
        ),
        _op(Op.MEM_FREE, _O, "address:u64", "Free an allocation after the work before it."),
        _op(Op.MEM_INFO, _Q, "qid:u64", "Free and total bytes.", "free:u64 total:u64"),
        _op(
            Op.MEMSET,
            _O,
            "address:u64 stream:u64 count:u64 value:u32 width:u32 flags:u32",
            "Fill `count` elements of `width` (1, 2, 4) bytes. Flag 1: synchronous form.",
        ),
        _op(
            Op.COPY_HTOD,
            _O,
            "address:u64 stream:u64 flags:u32 data:bytes",
            "Copy host bytes (at most 1 MiB, taken at the call) to the device. "
            "Flag 1: synchronous form, ordered before all later work on any stream.",
        ),
        _op(
            Op.COPY_DTOH,
            _A,
            "address:u64 stream:u64 size:u32 flags:u32",
            "Copy device bytes (at most 1 MiB) to the host, as they are at this place in the "
            "order. Flag 1: synchronous form.",
            "data:bytes",
        ),
        _op(
            Op.COPY_DTOD,
            _O,
            "destination:u64 source:u64 stream:u64 size:u64 flags:u32",
            "Copy between device addresses, of different devices too. Flag 1: synchronous form. "
            "Flag 2: behind all work of all streams so far, and ahead of all that follows.",
        ),
        _op(
            Op.MEM_ALLOC_ASYNC,
            _A,
            "size:u64 stream:u64",
            "Allocate device memory in a stream's order, in its context. The outcome's value is "
            "the address; replay allocates at it.",
        ),
        _op(
            Op.MEM_FREE_ASYNC,
            _O,
            "address:u64 stream:u64",
            "Free an allocation in a stream's order, however it was allocated.",
        ),
        _op(
            Op.MEMSET_2D,
            _O,
            "address:u64 stream:u64 pitch:u64 columns:u64 rows:u64 value:u32 width:u32 flags:u32",
            "Fill `columns` elements of `width` (1, 2, 4) bytes in each of so many rows, which "
            "begin `pitch` bytes apart. Flags as MEMSET's.",
        ),
        _op(
            Op.COPY_HTOD_2D,
            _O,
            "address:u64 stream:u64 pitch:u64 width:u32 flags:u32 data:bytes",
            "Copy host bytes (at most 1 MiB) to rows of `width` bytes on the device. Flags as "
            "COPY_HTOD's.",
        ),
        _op(
            Op.COPY_DTOH_2D,
            _A,
            "address:u64 stream:u64 pitch:u64 width:u32 rows:u32 flags:u32",
            "Copy rows of the device (at most 1 MiB) to the host, one behind the other. Flags as "
            "COPY_DTOH's.",
            "data:bytes",
        ),
        _op(
            Op.COPY_DTOD_2D,
            _O,
            "destination:u64 source:u64 stream:u64 destination_pitch:u64 source_pitch:u64 "
            "width:u64 rows:u64 flags:u32",
            "Copy rows between device addresses. Flags as COPY_DTOD's.",
        ),
        _op(Op.STREAM_CREATE, _O, "handle:u64 flags:u32 priority:i32", "Create a stream."),
        _op(Op.STREAM_DESTROY, _O, "handle:u64", "Destroy a stream; its work goes on."),
        _op(
            Op.STREAM_WAIT_EVENT,
            _O,
            "stream:u64 event:u64 flags:u32",
            "Make a stream wait for the latest record of an event.",
        ),
        _op(
            Op.STREAM_QUERY,
            _Q,
            "qid:u64 stream:u64",
            "Whether a stream's work so far is done: result 0 or 600 (NOT_READY).",
        ),
        _op(Op.STREAM_SYNC, _Q, "qid:u64 stream:u64", "Answered when that work is done."),
        _op(Op.EVENT_CREATE, _O, "handle:u64 flags:u32", "Create an event."),
        _op(Op.EVENT_DESTROY, _O, "handle:u64", "Destroy an event."),
        _op(Op.EVENT_RECORD, _O, "event:u64 stream:u64 flags:u32", "Record an event."),
        _op(
            Op.EVENT_QUERY,
            _Q,
            "qid:u64 event:u64",
            "Whether the latest record of an event is done: result 0 or 600.",
        ),
        _op(Op.EVENT_SYNC, _Q, "qid:u64 event:u64", "Answered when that record is done."),
        _op(
            Op.EVENT_ELAPSED,
            _Q,
            "qid:u64 start:u64 end:u64",
            "Milliseconds between two records.",
            "milliseconds:f32",
        ),
        _op(
            Op.LAUNCH,
            _O,
            "function:u64 stream:u64 grid_x:u32 grid_y:u32 grid_z:u32 block_x:u32 block_y:u32 "
            "block_z:u32 shared:u32 data:bytes",
            "Launch a kernel; `data` is the packed parameter buffer of the kernel's layout.",
        ),
        _op(
            Op.LAUNCH_COOPERATIVE,
            _O,
            "function:u64 stream:u64 grid_x:u32 grid_y:u32 grid_z:u32 block_x:u32 block_y:u32 "
            "block_z:u32 shared:u32 data:bytes",
            "Launch a kernel whose blocks may wait for each other: all of them run at once.",
        ),
        _op(
            Op.OCCUPANCY,
            _Q,
            "qid:u64 function:u64 block_size:u32 flags:u32 shared:u64",
            "How many blocks of a kernel run on a multiprocessor at once.",
            "blocks:u32",
        ),
        _op(
            Op.OCCUPANCY_SHARED,
            _Q,
            "qid:u64 function:u64 block_size:u32 blocks:u32",
            "Bytes of dynamic shared memory that each of so many blocks may have.",
            "size:u64",
        ),
    )
)
