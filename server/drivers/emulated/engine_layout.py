"""What Python and the engine share: the control block and the layouts of commands."""

from __future__ import annotations

#: Word of the control block by name; sides that write often have cache lines of their own.
CONTROL = {
    "head": 0,  # bytes ever published (producer)
    "stop": 1,  # not 0: the engine returns
    "watchdog": 2,  # not 0: note when each launch starts
    "tail": 8,  # bytes ever consumed (engine)
    "completed": 9,  # commands ever executed: the newest ticket that is done
    "running_since": 10,  # nanoseconds; 0 between launches
    "running_tag": 11,  # tag of the newest launch
    "sleeping": 16,  # 1 while the engine waits for a command
    "wake_at": 24,  # lowest ticket a thread waits for
    "wakes": 25,  # counts wake-ups; the word that waiting threads sleep on
    "watch_at": 26,  # lowest ticket that the descriptor announces
    "descriptor": 27,
    "error": 32,  # set once by whoever fails: code, address, PTX line
    "error_address": 33,
    "error_line": 34,
    "fault": 40,  # the error with its command, when all is written
    "fault_tag": 41,
    "fault_kernel": 42,
    "ring": 48,  # address
    "ring_mask": 49,
}
#: ``wake_at`` and ``watch_at`` when nobody waits.
NOBODY = (1 << 64) - 1

# Commands. Each begins with u32 command, u32 size in bytes (a multiple of 16), u64 tag.
PAD, LAUNCH, COPY, WRITE, FILL, STAMP, MAP, UNMAP = range(8)

# Python's struct formats of the commands (native byte order; the layouts have no padding).
LAUNCH_FORMAT = "=IIQQQQIIIIIIIIII"
PARAMETERS_OFFSET = 80  # of the inline parameters in a launch
COPY_FORMAT = "=IIQQQQ"  # target, source, bytes
WRITE_FORMAT = "=IIQQQ"  # target, bytes; the bytes follow
WRITE_OFFSET = 32
FILL_FORMAT = "=IIQQQII"  # target, count, value, bytes of a value
STAMP_FORMAT = "=IIQQ"  # where the time goes
MAP_FORMAT = "=IIQQQ"  # first page map entry, pages
UNMAP_FORMAT = "=IIQQQQQQQ"  # first page map entry, pages, address, bytes, file, offset there


def field(name: str) -> str:
    """Return IR that points ``%name.p`` at a word of the control block ``%c``."""
    return f"  %{name}.p = getelementptr i64, ptr %c, i64 {CONTROL[name]}\n"


def fields(*names: str) -> str:
    """Return IR that points at several words of the control block."""
    return "".join(field(name) for name in names)
