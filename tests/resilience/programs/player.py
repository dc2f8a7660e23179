"""One thread of the soak's threaded program: it does everything to buffers of its own.

It draws its operations from its seed and follows them in numpy. Every few rounds it hands a
buffer to the next thread, ordered on the device by events.
"""

from __future__ import annotations

import hashlib
import queue
import time
from collections.abc import Callable

import numpy as np
from device_buffers import (
    WORD,
    Buffer,
    Mismatch,
    Mixer,
    Words,
    check,
    compare,
    free,
    new_buffer,
    read,
    use,
)
from report import Report

import outlast.shim.driver as cuda

#: Rounds between hand-overs.
PARCEL_EVERY = 7
MOST_BUFFERS = 8
NOT_READY = 600
PATIENCE = 60.0  # seconds
#: Flags of a thread's streams: two that the default stream waits for, one that it does not.
STREAM_FLAGS = (0, 0, 1)


class Player:
    """What one thread does, with its streams, module and buffers.

    Parameters
    ----------
    number : int
        Which thread it is; with ``seed`` it decides everything the thread does.
    rounds : int
        Operations to do.
    inbox, outbox : queue.Queue
        Where buffers come from and go to.
    """

    def __init__(
        self,
        number: int,
        seed: int,
        rounds: int,
        report: Report,
        inbox: queue.Queue[Buffer],
        outbox: queue.Queue[Buffer],
    ) -> None:
        self.number = number
        self.random = np.random.default_rng((seed, number))
        self.rounds = rounds
        self.report = report
        self.inbox = inbox
        self.outbox = outbox
        self.buffers: list[Buffer] = []
        self.mixer = Mixer()
        self.deeds: list[Callable[[], None]] = [
            *[self.fill, self.upload, self.copy, self.stir, self.stir, self.weave, self.tally],
            *[self.allocate, self.free, self.read, self.read, self.read_now, self.pass_by],
            *[self.wait_event, self.poll, self.wait_stream, self.renew_stream, self.reload],
        ]

    def play(self) -> str:
        """Play all rounds; return the digest of everything at their end."""
        check(cuda.cuCtxSetCurrent(check(cuda.cuDevicePrimaryCtxRetain(0))))
        self.streams = [check(cuda.cuStreamCreate(flags)) for flags in STREAM_FLAGS]
        self.mixer.load()
        self.sum = new_buffer(1, self.streams[0])
        for _ in range(3):
            self.allocate()
        for number in range(self.rounds):
            self.deeds[self.random.integers(len(self.deeds))]()
            if number % PARCEL_EVERY == PARCEL_EVERY - 1:
                self.hand_over()
            self.report.one_more()
        return self._finish()

    def _finish(self) -> str:
        digest = hashlib.sha256()
        self.read_passes()
        for buffer in [self.sum, *self.buffers]:
            digest.update(read(buffer).tobytes())
            free(buffer)
        check(cuda.cuModuleUnload(self.mixer.module))
        for stream in self.streams:
            check(cuda.cuStreamDestroy(stream))
        check(cuda.cuDevicePrimaryCtxRelease(0))
        return digest.hexdigest()

    # -- draws ----------------------------------------------------------------------------------

    def _stream(self) -> object:
        return self.streams[self.random.integers(len(self.streams))]

    def _buffer(self) -> Buffer:
        return self.buffers[self.random.integers(len(self.buffers))]

    def _number(self) -> int:
        return int(self.random.integers(1 << 32))

    def _part(self, count: int) -> tuple[int, int]:
        """Return a first word and a number of words within ``count``."""
        first = int(self.random.integers(count))
        return first, int(self.random.integers(1, count - first + 1))

    # -- deeds ----------------------------------------------------------------------------------

    def allocate(self) -> None:
        """Allocate a buffer: mostly small, now and then of more than one frame."""
        if len(self.buffers) < MOST_BUFFERS:
            count = int(2 ** self.random.uniform(0, 15))
            if self.random.random() < 0.08:
                count += 300_000
            self.buffers.append(new_buffer(count, self._stream()))
            self.upload()

    def free(self) -> None:
        """Free a buffer."""
        if len(self.buffers) > 2:
            free(self.buffers.pop(self.random.integers(len(self.buffers))))

    def fill(self) -> None:
        """Set a part of a buffer, by words, halves or bytes."""
        buffer, stream, value = self._buffer(), self._stream(), self._number()
        first, count = self._part(buffer.count)
        address = use(buffer, stream) + first * WORD
        match self.random.integers(3):
            case 0:
                check(cuda.cuMemsetD32Async(address, value, count, stream))
            case 1:
                value = (value & 0xFFFF) * 0x10001
                check(cuda.cuMemsetD16Async(address, value & 0xFFFF, count * 2, stream))
            case _:
                value = (value & 0xFF) * 0x1010101
                check(cuda.cuMemsetD8Async(address, value & 0xFF, count * 4, stream))
        buffer.model[first : first + count] = value

    def upload(self) -> None:
        """Write random words."""
        buffer = self._buffer()
        first, count = self._part(buffer.count)
        words = self.random.integers(1 << 32, size=count, dtype=np.uint32)
        if self.random.random() < 0.3:
            address = use(buffer, 0) + first * WORD
            check(cuda.cuMemcpyHtoD(address, words.ctypes.data, words.nbytes))
        else:
            stream = self._stream()
            address = use(buffer, stream) + first * WORD
            check(cuda.cuMemcpyHtoDAsync(address, words.ctypes.data, words.nbytes, stream))
        buffer.model[first : first + count] = words
        words[:] = 0xDEADBEEF  # the call has taken the bytes

    def copy(self) -> None:
        """Copy between two buffers."""
        target, source, stream = self._buffer(), self._buffer(), self._stream()
        if target is source:
            return
        count = min(target.count, source.count)
        to, origin = use(target, stream), use(source, stream)
        check(cuda.cuMemcpyDtoDAsync(to, origin, count * WORD, stream))
        target.model[:count] = source.model[:count]

    def stir(self) -> None:
        """Launch `stir` on a buffer."""
        buffer, stream, salt = self._buffer(), self._stream(), self._number()
        self.mixer.launch("stir", buffer.count, stream, use(buffer, stream), buffer.count, salt)
        index = np.arange(buffer.count, dtype=np.uint32)
        buffer.model *= np.uint32(1664525)
        buffer.model += np.uint32(1013904223)
        buffer.model += np.uint32(salt) ^ index

    def weave(self) -> None:
        """Launch `weave` on two buffers."""
        target, source, stream = self._buffer(), self._buffer(), self._stream()
        if target is source:
            return
        count, step = min(target.count, source.count), self._number()
        addresses = use(target, stream), use(source, stream)
        self.mixer.launch("weave", count, stream, *addresses, count, step)
        chosen = (np.arange(count, dtype=np.uint32) * np.uint32(step)) % np.uint32(count)
        words = target.model[:count]
        words[:] = (words << np.uint32(1) | words >> np.uint32(31)) ^ source.model[chosen]

    def tally(self) -> None:
        """Launch `tally`: a buffer's words are added to the thread's sum."""
        buffer, stream = self._buffer(), self._stream()
        addresses = use(buffer, stream), use(self.sum, stream)
        arguments = addresses[0], buffer.count, addresses[1]
        self.mixer.launch("tally", buffer.count, stream, *arguments)
        self.sum.model += np.sum(buffer.model, dtype=np.uint32)

    def pass_by(self) -> None:
        """Launch `pass`, always on the first stream."""
        salt = self._number()
        self.mixer.launch("pass", 1, self.streams[0], salt)
        self.mixer.passes = (self.mixer.passes * 31 + salt) % (1 << 32)

    def read(self) -> None:
        """Read a part of a buffer in its stream."""
        buffer = self._buffer()
        read(buffer, *self._part(buffer.count))

    def read_now(self) -> None:
        """Read a part of a buffer by a synchronous copy."""
        buffer = self._buffer()
        first, count = self._part(buffer.count)
        words = np.empty(count, np.uint32)
        address = use(buffer, 0) + first * WORD
        check(cuda.cuMemcpyDtoH(words.ctypes.data, address, words.nbytes))
        compare(words, buffer.model[first : first + count], "a synchronous copy")

    def read_passes(self) -> None:
        """Read the module's variable."""
        check(cuda.cuStreamSynchronize(self.streams[0]))
        word = np.empty(1, np.uint32)
        check(cuda.cuMemcpyDtoH(word.ctypes.data, self.mixer.variable(), WORD))
        compare(word, np.array([self.mixer.passes], np.uint32), "the module's variable")

    def wait_event(self) -> None:
        """Record two events, wait for the later one, and ask what must be known then."""
        stream = self._stream()
        start, end = check(cuda.cuEventCreate(0)), check(cuda.cuEventCreate(0))
        check(cuda.cuEventRecord(start, stream))
        check(cuda.cuEventRecord(end, stream))
        check(cuda.cuEventSynchronize(end))
        for event in (start, end):
            check(cuda.cuEventQuery(event))
        if check(cuda.cuEventElapsedTime(start, end)) < 0:
            raise Mismatch("time runs backwards")
        for event in (start, end):
            check(cuda.cuEventDestroy(event))

    def poll(self) -> None:
        """Ask for a stream and an event until they are done."""
        buffer = self._buffer()
        check(cuda.cuEventRecord(buffer.event, buffer.stream))
        ready(lambda: cuda.cuEventQuery(buffer.event))
        ready(lambda: cuda.cuStreamQuery(buffer.stream))

    def wait_stream(self) -> None:
        """Wait for a stream, or for all of them."""
        if self.random.random() < 0.3:
            check(cuda.cuCtxSynchronize())
        else:
            check(cuda.cuStreamSynchronize(self._stream()))

    def renew_stream(self) -> None:
        """Replace a stream, which may still have work."""
        number = int(self.random.integers(1, len(self.streams)))
        old = self.streams[number]
        new = check(cuda.cuStreamCreate(STREAM_FLAGS[number]))
        for buffer in [self.sum, *self.buffers]:
            if buffer.stream is old:
                use(buffer, new)
        check(cuda.cuStreamDestroy(old))
        self.streams[number] = new

    def reload(self) -> None:
        """Unload the module and load it again, now and then."""
        if self.random.random() < 0.4:
            self.read_passes()
            check(cuda.cuCtxSynchronize())
            self.mixer.load()

    def hand_over(self) -> None:
        """Give a buffer to the next thread and take one from the thread before."""
        given = self.buffers.pop(self.random.integers(len(self.buffers)))
        check(cuda.cuEventRecord(given.event, given.stream))
        self.outbox.put(given)
        taken = self.inbox.get(timeout=PATIENCE)
        stream = self._stream()
        check(cuda.cuStreamWaitEvent(stream, taken.event, 0))
        taken.stream = stream
        self.buffers.append(taken)
        self.stir_words(taken, stream)

    def stir_words(self, buffer: Buffer, stream: object) -> None:
        """Change a buffer just taken, so that its order with the giver's work shows."""
        check(cuda.cuMemsetD32Async(buffer.address, self.number, 1, stream))
        words: Words = buffer.model
        words[0] = self.number


def ready(ask: Callable[[], tuple[object, ...]]) -> None:
    """Ask until the answer is that all is done."""
    deadline = time.monotonic() + PATIENCE
    while (result := int(ask()[0])) == NOT_READY:  # type: ignore[call-overload]
        if time.monotonic() > deadline:
            raise TimeoutError("never ready")
    check((result,))
