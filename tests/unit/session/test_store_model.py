"""Random histories of one session, against a model of dictionaries; restarts included."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from helpers.journal import INCARNATION, OTHER_INCARNATION, TOKEN_HASH, ManualClock, epoch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from outlast.errors import LeaseLost, SessionBusy, TokenSuperseded
from outlast.migrations import upgrade
from outlast.session.database import open_engine
from outlast.session.rows import Allocated, Entry, Freed, HandleCreated, HandleDestroyed
from outlast.session.store import Store

SERVERS = ("a", "b")
LEASE = 10.0  # seconds
PAGE = 4096  # bytes
#: Addresses on both sides of the sign bit.
BASES = [2**63 + step * PAGE for step in range(-2, 3)]


@dataclass
class Model:
    """What the journal should say."""

    owner: str = "a"
    token: int = 1
    generation: int = 0
    incarnation: bytes = INCARNATION
    seq: int = 0
    last_epoch: int = 0
    recoverable: int = 0
    #: (number, seq) of the usable epochs, oldest first.
    epochs: list[tuple[int, int]] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    leases: dict[str, float] = field(default_factory=dict)

    def handles(self) -> set[int]:
        live: set[int] = set()
        for entry in self.entries:
            if isinstance(entry, HandleCreated):
                live.add(entry.id)
            elif isinstance(entry, HandleDestroyed):
                live.discard(entry.id)
        return live

    def memory(self) -> dict[int, int]:
        live: dict[int, int] = {}
        for entry in self.entries:
            if isinstance(entry, Allocated):
                live[entry.address] = entry.size
            elif isinstance(entry, Freed):
                live.pop(entry.address, None)
        return live

    def cut_back(self, seq: int) -> None:
        self.entries = [entry for entry in self.entries if entry.seq <= seq]
        self.epochs = [row for row in self.epochs if row[1] <= seq]
        self.seq = seq


class JournalMachine(RuleBasedStateMachine):
    """Two servers, one session, one clock."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.clock = ManualClock()
        self.model = Model()
        self.handle = 0
        self.stale: list[int] = []

    @initialize()
    def create(self) -> None:
        self.open()
        upgrade(self.store.engine)
        self.register("a")
        self.store.create_session("train", INCARNATION, TOKEN_HASH, "a")

    def open(self) -> None:
        engine = open_engine(f"sqlite:///{Path(self.folder.name) / 'journal.db'}")
        self.store = Store(engine, clock=self.clock)

    def alive(self, server: str) -> bool:
        return self.model.leases.get(server, 0.0) > self.clock.time

    def teardown(self) -> None:
        self.store.close()
        self.folder.cleanup()

    @rule()
    def restart(self) -> None:
        self.store.close()
        self.open()

    @rule(seconds=st.sampled_from([LEASE / 10, LEASE]))
    def pass_time(self, seconds: float) -> None:
        self.clock.time += seconds

    @rule(server=st.sampled_from(SERVERS))
    def register(self, server: str) -> None:
        self.store.register_server(server, "gpu-host", f"tcp://{server}", LEASE)
        self.model.leases[server] = self.clock.time + LEASE

    @rule(server=st.sampled_from(SERVERS))
    def renew_lease(self, server: str) -> None:
        alive = self.alive(server)
        assert self.store.renew_lease(server, LEASE) == alive
        if alive:
            self.model.leases[server] = self.clock.time + LEASE

    @rule(server=st.sampled_from(SERVERS))
    def release(self, server: str) -> None:
        self.store.release_server(server)
        self.model.leases.pop(server, None)

    @rule(data=st.data(), count=st.integers(2, 8))
    def work_up_to_an_epoch(self, data: st.DataObject, count: int) -> None:
        self.record(data, count, 1)
        self.commit(verified=True)

    @precondition(lambda self: self.model.epochs)
    @rule(fall_back=st.booleans())
    def recover(self, fall_back: bool) -> None:
        """Come back as the same server, as after a crash."""
        self.register(self.model.owner)
        self.claim(self.model.owner, fall_back)

    @rule(server=st.sampled_from(SERVERS), fall_back=st.booleans())
    def claim(self, server: str, fall_back: bool) -> None:
        # Behind what a client was told to be recoverable, no log reaches back any more.
        usable = [seq for _, seq in self.model.epochs[-2:] if seq >= self.model.recoverable]
        seq = usable[0] if usable and fall_back else None
        if not self.alive(server):
            with pytest.raises(LeaseLost):
                self.store.claim("train", server, seq=seq)
        elif server != self.model.owner and self.alive(self.model.owner):
            with pytest.raises(SessionBusy):
                self.store.claim("train", server, seq=seq)
        else:
            self.stale.append(self.model.token)
            self.model.owner, self.model.token = server, self.model.token + 1
            self.store.claim("train", server, seq=seq)
            self.model.cut_back(seq if seq is not None else usable[-1] if usable else 0)

    @rule(incarnation=st.sampled_from([INCARNATION, OTHER_INCARNATION]), adopt=st.booleans())
    def attach(self, incarnation: bytes, adopt: bool) -> None:
        if incarnation != self.model.incarnation and not adopt:
            with pytest.raises(SessionBusy):
                self.store.attach("train", self.model.token, incarnation)
            return
        enter = self.store.adopt if adopt else self.store.attach
        self.model.generation += 1
        self.model.incarnation = incarnation
        assert enter("train", self.model.token, incarnation).generation == self.model.generation

    @rule(data=st.data(), count=st.integers(2, 8), times=st.integers(1, 2))
    def record(self, data: st.DataObject, count: int, times: int) -> None:
        batch = [self.entry(data) for _ in range(count)]
        for _ in range(times):
            self.store.record("train", self.model.token, batch)

    def entry(self, data: st.DataObject) -> Entry:
        """Make the next call: it ends something that is there, or begins something."""
        self.model.seq += 1
        seq, memory = self.model.seq, self.model.memory()
        entry: Entry
        match data.draw(st.sampled_from(["create", "destroy", "memory"])):
            case "destroy" if self.model.handles():
                chosen = data.draw(st.sampled_from(sorted(self.model.handles())))
                entry = HandleDestroyed("stream", chosen, seq)
            case "memory":
                address = data.draw(st.sampled_from(BASES))
                taken = address in memory
                entry = Freed(address, seq) if taken else Allocated(address, PAGE, 0, 0, seq)
            case _:
                self.handle += 16
                entry = HandleCreated("stream", self.handle, 0, {}, seq)
        self.model.entries.append(entry)
        return entry

    @rule()
    def record_everything_again(self) -> None:
        """A worker sends all it has not seen acknowledged."""
        self.store.record("train", self.model.token, self.model.entries)

    @rule(verified=st.booleans())
    def commit(self, verified: bool) -> None:
        self.model.last_epoch += 1
        row = epoch(self.model.last_epoch, self.model.seq, verified=verified)
        if verified:
            self.model.epochs.append((row.epoch, row.seq))
        newest = [seq for _, seq in self.model.epochs[-2:]]
        expected = min(newest) if len(newest) == 2 else 0
        self.model.recoverable = max(self.model.recoverable, expected)
        assert self.store.commit_epoch("train", self.model.token, row) == expected

    @rule(data=st.data())
    def remove_epochs(self, data: st.DataObject) -> None:
        numbers = data.draw(st.sets(st.integers(1, self.model.last_epoch + 1), max_size=5))
        self.store.mark_deleting("train", self.model.token, numbers)
        self.store.forget_epochs("train", self.model.token, numbers)
        kept = self.model.epochs[-2:]
        self.model.epochs = [e for e in self.model.epochs if e in kept or e[0] not in numbers]

    @rule(data=st.data())
    def write_under_another_token(self, data: st.DataObject) -> None:
        old = data.draw(st.sampled_from([*self.stale, self.model.token + 1]))
        with pytest.raises(TokenSuperseded):
            self.store.record("train", old, [HandleCreated("stream", 2**64 - 1, 0, {}, 1)])
        with pytest.raises(TokenSuperseded):
            self.store.commit_epoch("train", old, epoch(99, 99))

    @invariant()
    def the_session_is_as_modelled(self) -> None:
        row, model = self.store.session("train"), self.model
        assert (row.owner, row.token) == (model.owner, model.token)
        assert (row.generation, row.incarnation) == (model.generation, model.incarnation)
        assert row.last_epoch == model.last_epoch

    @invariant()
    def the_rows_are_as_modelled(self) -> None:
        assert {row.id for row in self.store.handles("train")} == self.model.handles()
        memory = {row.address: row.size for row in self.store.allocations("train")}
        assert memory == self.model.memory()
        usable = [(row.epoch, row.seq) for row in reversed(self.store.epochs("train"))]
        assert usable == self.model.epochs


class TestJournal(JournalMachine.TestCase):
    """Run the machine; a failing history is printed as a program."""

    settings = settings(max_examples=20, stateful_step_count=40, deadline=None)
