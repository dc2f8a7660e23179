"""What the modelled world consists of: rows, epochs, links, programs, workers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from outlast.errors import OutlastError, ProtocolError, SessionBusy, SessionFenced
from outlast.session import wire
from outlast.session.calllog import CallLog
from outlast.session.client import ClientSession
from outlast.session.cuda import is_sticky
from outlast.session.host import Cut, HostSession
from outlast.session.operations import Op, OpClass
from outlast.session.pending import Pending
from outlast.session.recovery import FaultRecovery
from outlast.session.schema import Intent, ReplyKind
from outlast.session.wire import Reply

SESSION = "model"
TOKEN = "token"
#: What a "bad" call fails with (CUDA_ERROR_INVALID_VALUE).
FAILURE = 1
#: What ends a context (CUDA_ERROR_LAUNCH_FAILED).
STICKY = 719
BIND = wire.pack_record(Op.BIND, 1, 0)

#: (name, argument): one thing that can happen.
Action = tuple[str, Any]
#: A call as a worker holds it: seq, id of the call, result, value.
Applied = tuple[int, int, int, int]

#: What a fault-free world does, in the order in which it prefers to.
PROGRESS = (
    "receive",
    "serve",
    "settle",
    "ack",
    "beat",
    "notice",
    "renew",
    "hello",
    "program",
    "end_stale",
)


@dataclass(frozen=True)
class Bounds:
    """What may happen, and how often."""

    #: Batches of each client: tuples of call kinds.
    scripts: dict[str, tuple[tuple[str, ...], ...]]
    #: Most occurrences of each fault or epoch.
    limits: dict[str, int]
    #: Most faults altogether.
    faults: int = 3
    #: Bytes in flight; 1 makes batches go one at a time.
    window: int = 1 << 20
    #: Frames of a given-up connection may still come in.
    late_frames: bool = False
    #: A worker that forgets the old client before the row is durable: the wrong order.
    forgets_early: bool = False
    #: Clients recover from what ends a context.
    recovers: bool = False
    #: A worker whose lease lapses drops calls without a word: the wrong answer.
    drops_silently: bool = False


@dataclass
class Row:
    """The journal's row of the session."""

    incarnation: bytes
    token: int = 1
    generation: int = 0


@dataclass
class Epoch:
    """A committed epoch."""

    seq: int
    state: tuple[Applied, ...]
    replies: tuple[Reply, ...]
    usable: bool = True
    corrupt: bool = False


@dataclass
class Connection:
    """Two ordered directions; each end may know or not know that it has ended."""

    client: str
    worker: int
    to_server: list[tuple[bytes, ...]] = field(default_factory=list)
    to_client: list[tuple[bytes, ...]] = field(default_factory=list)
    open: bool = True  # the client still uses it


@dataclass
class Client:
    """A program with its session."""

    name: str
    session: ClientSession
    script: tuple[tuple[str, ...], ...]
    connection: int = 0
    #: Id of each of its calls, by seq.
    issued: dict[int, int] = field(default_factory=dict)
    failing: set[int] = field(default_factory=set)
    waiting: dict[int, Pending] = field(default_factory=dict)
    queries: dict[int, tuple[int, Pending]] = field(default_factory=dict)
    #: What the program has seen: result and value of a call, by seq.
    landed: dict[int, tuple[int, int]] = field(default_factory=dict)
    #: Seqs of late failures the program was told of, in that order.
    reported: list[int] = field(default_factory=list)
    #: Highest generation it accepted.
    accepted: int = 0
    crashed: bool = False

    @property
    def base(self) -> int:
        """Seq of the epoch it adopted, 0 for a creator."""
        return len(self.inherited)

    @property
    def inherited(self) -> list[list[int]]:
        """Calls of the client before it."""
        return list(self.session.inventory.get("state", []))


@dataclass
class ModelWorker:
    """A worker process: the real host state machine over a trivial device."""

    id: int
    token: int
    host: HostSession = field(default_factory=HostSession)
    state: list[Applied] = field(default_factory=list)
    #: Reads that the device has not done yet, and what is to be announced behind them.
    waits: list[Reply] = field(default_factory=list)
    saving: tuple[Cut, tuple[Applied, ...]] | None = None
    may_act: bool = True
    #: The next batch ends behind its first call: the device refuses to go on.
    stumbles: bool = False
    #: The next call ends the context, by no fault of its own.
    fails: bool = False
    #: What has ended it.
    poisoned: int = 0

    def run(self, first_seq: int, skip: int, stream: Any, payloads: Any) -> None:
        """Apply a batch, as the executor does."""
        imposed: tuple[Any, ...] | None = None
        seq = first_seq - 1
        for codec, args, _ in wire.CallStream(stream, payloads):
            if codec.op is Op.OUTCOME:
                imposed = args
            elif codec.op is Op.STREAM_SYNC:
                self.waits.append(Reply(ReplyKind.ANSWER, args[0], self.poisoned))
            elif codec.spec.cls is OpClass.QUERY:
                data = wire.pack_fields(Op.MEM_INFO, self.host.applied, 0)
                data = b"" if self.poisoned else data
                self.host.reply(Reply(ReplyKind.ANSWER, args[0], self.poisoned, 0, data))
            elif codec.spec.cls is not OpClass.CONTROL:
                seq += 1
                if seq >= first_seq + skip:
                    self._apply(seq, codec.op, args[0], imposed)
                    self.host.advance(seq)
                    if self.stumbles:
                        raise ProtocolError("the rest of the batch cannot be had")
                imposed = None

    def _apply(self, seq: int, op: Op, uid: int, imposed: tuple[Any, ...] | None) -> None:
        if imposed is not None:
            if imposed[0] != seq:
                raise ProtocolError("an outcome of another call")
            self.state.append((seq, uid, imposed[1], imposed[2]))
            if is_sticky(imposed[1]):
                self.poisoned = imposed[1]
            return
        if self.fails:
            self._fail(seq)
        if self.poisoned:
            if op in (Op.MEM_ALLOC, Op.COPY_DTOH):
                self.host.reply(Reply(ReplyKind.OUTCOME, seq, self.poisoned))
            self.state.append((seq, uid, self.poisoned, 0))
            return
        result = value = 0
        if op in (Op.MEM_ALLOC, Op.COPY_DTOH):
            value = self.id  # every process gives another outcome
            outcome = Reply(ReplyKind.OUTCOME, seq, 0, value)
            if op is Op.MEM_ALLOC:
                self.host.reply(outcome)
            else:
                self.waits.append(outcome)
        elif op is Op.MEM_FREE:
            result, value = FAILURE, seq
            self.host.reply(Reply(ReplyKind.DEFERRED, seq, FAILURE, seq))
        self.state.append((seq, uid, result, value))

    def _fail(self, seq: int) -> None:
        """End the context: this is told first, then what it does to the reads under way."""
        self.fails, self.poisoned = False, STICKY
        self.host.reply(Reply(ReplyKind.DEFERRED, seq, STICKY, seq))
        for read in self.waits:
            self.host.reply(Reply(read.kind, read.number, STICKY))
        self.waits.clear()

    def forget_queries(self) -> None:
        """Forget what is asked again by whoever attaches."""
        self.waits = [wait for wait in self.waits if wait.kind is not ReplyKind.ANSWER]

    def settle(self) -> None:
        """Answer the reads, and announce."""
        waits, self.waits = self.waits, []
        for reply in waits:
            self.host.reply(reply)


class Violation(AssertionError):
    """A property does not hold; its name comes first."""

    def __init__(self, name: str, detail: str = "") -> None:
        super().__init__(f"{name}: {detail}")
        self.name = name


class State:
    """One state of the whole system."""

    def __init__(self, bounds: Bounds) -> None:
        self.clients = {
            name: new_client(
                name, script, Intent.CREATE if name == "A" else Intent.ADOPT, bounds.recovers
            )
            for name, script in bounds.scripts.items()
        }
        self.recovers = bounds.recovers
        self.row: Row | None = None
        self.epochs: list[Epoch] = []  # newest last
        self.worker: ModelWorker | None = None
        self.stale: ModelWorker | None = None
        self.connections: dict[int, Connection] = {}
        self.used: Counter[str] = Counter()
        self.workers = 0
        self.next_connection = 1

    # -- what all parts use -----------------------------------------------------------------

    def _at(self, worker_id: int) -> ModelWorker | None:
        for worker in (self.worker, self.stale):
            if worker is not None and worker.id == worker_id:
                return worker
        return None

    def _is_open(self, peer: bytes) -> bool:
        connection = self.connections.get(int(peer))
        return connection is not None and connection.open

    def _send(self, peer: bytes, frames: tuple[bytes, ...], bounds: Bounds) -> None:
        connection = self.connections.get(int(peer))
        if connection is not None and (connection.open or bounds.late_frames):
            connection.to_client.append(tuple(bytes(frame) for frame in frames))

    def _disconnect(self, client: Client, bounds: Bounds) -> None:
        connection = self.connections[client.connection]
        connection.open = False
        if not bounds.late_frames:
            connection.to_client.clear()
        client.connection = 0
        client.session.detached()

    def _flush(self, client: Client) -> None:
        connection = self.connections.get(client.connection)
        for frames in client.session.take_outgoing():
            if connection is not None:
                connection.to_server.append(tuple(frames))

    def _refused(self, client: Client, error: OutlastError) -> None:
        # A busy session is asked for again until the client's patience ends: as good as now.
        # What a peer did not understand is said anew over a new connection.
        patient = isinstance(error, ProtocolError) or (
            error.retryable and not isinstance(error, SessionBusy)
        )
        if not patient and (not client.connection or not isinstance(error, SessionFenced)):
            client.session.close(error)


def record(kind: str, uid: int) -> bytes:
    if kind == "alloc":
        return wire.pack_record(Op.MEM_ALLOC, uid)
    if kind == "read":
        return wire.pack_record(Op.COPY_DTOH, uid, 0, 0, 0)
    if kind == "bad":
        return wire.pack_record(Op.MEM_FREE, uid)
    return wire.pack_record(Op.EVENT_DESTROY, uid)


def new_client(
    name: str, script: tuple[tuple[str, ...], ...], intent: Intent, recovers: bool
) -> Client:
    recovery = FaultRecovery(recovers)
    session = ClientSession(SESSION, name.encode() * 16, TOKEN, CallLog(), intent, recovery)
    return Client(name, session, script)
