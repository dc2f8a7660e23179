"""Whether work is done, told without a round trip for each time the program asks.

The first question about a record, or about a stream's work up to its newest call, asks the
server to announce its end, and goes on; later ones look whether the announcement has come. So
a program that asks again and again costs the server one query, and "done" is final.

"Not done" may be said only as long as the program cannot know better. It can if some wait has
ended meanwhile: the server announces an end ahead of what was asked behind the announcement,
but not ahead of an answer that was on its way already. Then the server is asked.
"""

from __future__ import annotations

import threading

from outlast.cuda_types import CUresult
from outlast.session.operations import Op
from outlast.shim.linkage import Link
from outlast.shim.objects import Event, Place, Stream

NOT_READY = int(CUresult.CUDA_ERROR_NOT_READY)


class Progress:
    """What the program was told of its work, and the questions about it.

    Parameters
    ----------
    link
        Carries them.
    lock
        The client's: events are recorded, and announcements asked for, under it.
    """

    def __init__(self, link: Link, lock: threading.RLock) -> None:
        self._link = link
        self._lock = lock
        #: Counts the answers that told the program of an end.
        self.told = 0
        #: The newest call when it was told last.
        self._frontier = 0
        self._counting = threading.Lock()

    # -- what is known -------------------------------------------------------------------------

    def tell(self) -> None:
        """Note that the program is about to hear that some work is done."""
        newest = self._link.next_seq - 1
        with self._counting:
            self.told += 1
            self._frontier = max(self._frontier, newest)

    # -- what is asked -------------------------------------------------------------------------

    def query(self, subject: Event | Stream, place: Place) -> int:
        """Return whether the work at the subject's place is done: 0, 600 or what has ended it."""
        if _known(place):
            return 0
        if self._may_be_known(place):
            told = self.told
            result = self._link.query(_QUERIES[type(subject)], subject.handle).result
            if result != NOT_READY:
                return self._end(subject, place, result)
            place.told = told
        watch = place.watch
        if watch is None:
            with self._lock:
                if subject.place is not place:
                    return NOT_READY  # another thread has recorded it again
                watch = place.watch = self._link.watch(_WAITS[type(subject)], subject.handle)
        self._link.look()
        if not watch.done:
            return NOT_READY
        watch.wait()
        return self._end(subject, place, watch.result)

    def wait(self, event: Event) -> int:
        """Wait for the latest record of an event; return a ``CUresult`` value."""
        place = event.place
        if place is None or _known(place):
            return 0
        if place.watch is None:
            result = self._link.query(Op.EVENT_SYNC, event.handle).result
        else:
            place.watch.wait()
            result = place.watch.result
        return self._end(event, place, result)

    def place_of(self, stream: Stream, newest: int) -> Place:
        """Return a stream's work up to its newest call, the same place as long as that is."""
        place = stream.place
        if place is None or place.seq != newest:
            place = stream.place = Place(stream, newest)
        return place

    def _may_be_known(self, place: Place) -> bool:
        """Return whether the program may know that the work is done, and we do not."""
        return self.told != place.told and self._frontier >= place.seq

    def _end(self, subject: Event | Stream, place: Place, result: int) -> int:
        # A record that was replaced meanwhile is not what the answer is about.
        if not result and subject.place is place:
            place.stream.done = max(place.stream.done, place.seq)
        if not result:
            self.tell()
        return result


_QUERIES = {Event: Op.EVENT_QUERY, Stream: Op.STREAM_QUERY}
_WAITS = {Event: Op.EVENT_SYNC, Stream: Op.STREAM_SYNC}


def _known(place: Place) -> bool:
    return place.seq <= max(place.stream.done, place.stream.context.done)
