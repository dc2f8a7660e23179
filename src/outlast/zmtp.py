"""ZMTP 3.0, the protocol of ZeroMQ's sockets, without any I/O: bytes to messages and back.

The data connection of a session speaks it without libzmq: there every message passes a thread
of its own on both sides, and waking those threads costs several times what the network does.
Any ZeroMQ socket can be the peer. Source: https://rfc.zeromq.org/spec/23/, mechanism NULL.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Final

from outlast.buffers import Buffers
from outlast.errors import ProtocolError

Frame = bytes | memoryview
#: Gives memory for a long frame of so many bytes, or None.
Memory = Callable[[int], memoryview | None]

_MORE, _LONG, _COMMAND = 1, 2, 4
_SHORT: Final = 255  # bytes that a short frame has at most
_SIZE: Final = struct.Struct(">BQ")
_NULL: Final = b"NULL".ljust(20, b"\0")
#: Signature, version 3.0, mechanism, not the server of a mechanism, filler.
_GREETING: Final = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + _NULL + bytes(32)
#: Frames up to here are copied out of the common buffer; longer ones get memory of their own.
_LARGE: Final = 32 << 10  # bytes
_CAPACITY: Final = 2 * _LARGE


def opening(kind: bytes) -> bytes:
    """Return what a socket says first: the greeting, and what kind of socket it is."""
    body = b"\x05READY" + _property(b"Socket-Type", kind) + _property(b"Identity", b"")
    return _GREETING + bytes((_COMMAND, len(body))) + body


def _property(name: bytes, value: bytes) -> bytes:
    return bytes((len(name),)) + name + len(value).to_bytes(4, "big") + value


def encode(frames: Sequence[Frame]) -> list[Frame]:
    """Return a message as pieces to be sent one behind the other; long frames are not copied."""
    pieces: list[Frame] = []
    head = b""
    last = len(frames) - 1
    for index, frame in enumerate(frames):
        size, more = len(frame), _MORE if index < last else 0
        if size <= _SHORT:
            head += bytes((more, size)) + frame
        elif size <= _LARGE:
            head += _SIZE.pack(more | _LONG, size) + frame
        else:
            pieces += (head + _SIZE.pack(more | _LONG, size), frame)
            head = b""
    if head:
        pieces.append(head)
    return pieces


class Decoder:
    """What a peer says.

    Parameters
    ----------
    kinds : collection of bytes
        Socket types that the peer may be of.
    frame_limit, message_limit : int
        Bytes of a frame, and of all frames of a message.
    memory : callable, optional
        Gives memory for a long frame of so many bytes, or None.
    """

    def __init__(
        self,
        kinds: Collection[bytes],
        frame_limit: int,
        message_limit: int,
        memory: Memory = lambda _: None,
    ) -> None:
        #: Complete messages, oldest first. Each begins with ``bytes``, the rest are views.
        self.messages: deque[list[Frame]] = deque()
        #: The peer has said what it is.
        self.ready = False
        self._kinds = kinds
        self._frame_limit = frame_limit
        self._message_limit = message_limit
        self._greeted = False
        self._buffer = memoryview(bytearray(_CAPACITY))
        self._start = self._end = 0
        self._frames: list[Frame] = []
        self._size = 0
        #: A long frame that is under way: its memory, how much of it is there, its flags.
        self._long: memoryview | None = None
        self._filled = 0
        self._flags = 0
        self._memory = memory
        self._buffers = Buffers()

    def space(self) -> memoryview:
        """Return where the next bytes go."""
        if self._long is not None:
            return self._long[self._filled :]
        return self._buffer[self._end :]

    def take(self, count: int) -> None:
        """Take in ``count`` bytes that were put into `space`.

        Raises
        ------
        ProtocolError
            This is no ZMTP, or beyond the limits.
        """
        if self._long is None:
            self._end += count
            if not self._greeted and not self._greet():
                return
            self._parse()
            return
        self._filled += count
        if self._filled == len(self._long):
            frame, self._long = self._long, None
            self._add(self._flags, frame)

    def _greet(self) -> bool:
        said = bytes(self._buffer[: min(self._end, len(_GREETING))])
        signature, version, mechanism = said[:10], said[10:11], said[12:32]
        if not signature.startswith(b"\xff") or (len(said) > 9 and not said[9] & 1):
            raise ProtocolError("the peer does not speak ZMTP")
        if version and version[0] < 3:
            raise ProtocolError(f"the peer speaks ZMTP {version[0]}; 3 is spoken here")
        if not _NULL.startswith(mechanism):
            name = mechanism.rstrip(b"\0").decode("ascii", "replace")
            raise ProtocolError(f"the peer wants the mechanism {name!r}; NULL is spoken here")
        if len(said) < len(_GREETING):
            return False
        self._greeted, self._start = True, len(_GREETING)
        return True

    def _parse(self) -> None:
        buffer, at, end = self._buffer, self._start, self._end
        while end - at > 1:
            flags, size, body = buffer[at], buffer[at + 1], at + 2
            if flags & _LONG:
                if end - at < _SIZE.size:
                    break
                size, body = _SIZE.unpack_from(buffer, at)[1], at + _SIZE.size
            self._check(flags, size)
            if body + size <= end:
                at = body + size
                self._add(flags, bytes(buffer[body:at]))
            elif size > _LARGE:
                self._begin(flags, size, buffer[body:end])
                at = end
            else:
                break
        left = end - at
        if left and at:
            buffer[:left] = bytes(buffer[at:end])
        self._start, self._end = 0, left

    def _check(self, flags: int, size: int) -> None:
        if flags > _MORE | _LONG | _COMMAND or (flags & _COMMAND and flags & _MORE):
            raise ProtocolError(f"a frame has the flags {flags:#x}")
        if size > (_LARGE if flags & _COMMAND else self._frame_limit):
            raise ProtocolError(f"a frame of {size} bytes; {self._frame_limit} are allowed")
        if not (flags & _COMMAND or self.ready):
            raise ProtocolError("a message before READY")

    def _begin(self, flags: int, size: int, part: memoryview) -> None:
        memory = self._memory(size)
        self._long = memory if memory is not None else self._buffers.take(size)
        self._long[: len(part)] = part
        self._filled, self._flags = len(part), flags

    def _add(self, flags: int, frame: Frame) -> None:
        if flags & _COMMAND:
            self._command(bytes(frame))
            return
        self._size += len(frame)
        if self._size > self._message_limit:
            raise ProtocolError(f"a message of more than {self._message_limit} bytes")
        frames = self._frames
        if not frames:
            frame = bytes(frame)
        elif isinstance(frame, bytes):
            frame = memoryview(frame)
        frames.append(frame)
        if not flags & _MORE:
            self.messages.append(frames)
            self._frames, self._size = [], 0

    def _command(self, body: bytes) -> None:
        name = body[1 : 1 + body[0]] if body else b""
        if name == b"ERROR":
            reason = body[7:].decode("utf-8", "replace")
            raise ProtocolError(f"the peer turns the connection down: {reason}")
        if name != b"READY":
            return  # heartbeats and subscriptions of newer versions; nobody has to answer
        kind = _properties(body[6:]).get(b"socket-type", b"")
        if kind not in self._kinds:
            raise ProtocolError(f"the peer is a {kind.decode('ascii', 'replace')!r} socket")
        self.ready = True


def _properties(data: bytes) -> dict[bytes, bytes]:
    found = {}
    at = 0
    while at < len(data):
        name = data[at + 1 : at + 1 + data[at]]
        at += 1 + len(name)
        size = int.from_bytes(data[at : at + 4], "big")
        value = data[at + 4 : at + 4 + size]
        if len(value) < size:
            raise ProtocolError("READY is cut off")
        at += 4 + size
        found[name.lower()] = value
    return found
