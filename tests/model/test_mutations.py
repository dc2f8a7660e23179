"""The checker has teeth: each broken rule is caught, by the property that stands for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from model.explorer import Explorer
from model.gateway import Gateway
from model.parts import Bounds

from outlast.session import client as client_module
from outlast.session.calllog import CallLog
from outlast.session.client import ClientSession
from outlast.session.deferred import LandedFailures
from outlast.session.host import Cut, HostSession
from outlast.session.openbatch import OpenBatch
from outlast.session.recovery import FaultRecovery

Patch = pytest.MonkeyPatch

CRASHES = Bounds({"A": (("alloc",), ("one",))}, {"crash": 1, "epoch": 2, "corrupt": 1}, 2)
LINKS = Bounds({"A": (("alloc", "bad"), ("read",))}, {"break": 1}, 1)
CORRUPTION = Bounds({"A": (("one",),), "B": ()}, {"break": 1, "crash": 1, "corrupt": 1}, 3)
STUMBLES = Bounds({"A": (("alloc", "bad"),)}, {"stumble": 1}, 1)
EPOCH = Bounds({"A": (("read",),)}, {"crash_all": 1, "epoch": 1}, 1)
EPOCHS = Bounds({"A": (("bad",), ("one",))}, {"crash_all": 1, "epoch": 2}, 1)
TAKEOVER = Bounds({"A": (("alloc",), ("one",))}, {"takeover": 1, "break": 1}, 2, late_frames=True)
WATCH = Bounds({"A": (("read", "watch"), ("one",))}, {"break": 1, "crash": 1}, 1)
POISON = Bounds({"A": (("one", "alloc"), ("ask",))}, {"poison": 1}, 1, recovers=True)
ADOPTION = Bounds(
    {"A": (("one",), ("bad",)), "B": (("one",),)}, {"break": 1, "crash": 1}, 2, late_frames=True
)


def recoverable_is_the_newest_epoch(patch: Patch) -> None:
    newest = property(lambda self: self.epochs[-1] if self.epochs else self._base)
    patch.setattr(HostSession, "recoverable", newest)


def truncation_is_off_by_one(patch: Patch) -> None:
    truncate = CallLog.truncate
    patch.setattr(CallLog, "truncate", lambda self, seq: truncate(self, seq + 1))


def replies_are_not_in_the_epoch(patch: Patch) -> None:
    patch.setattr(HostSession, "cut", lambda self: Cut(self.applied, ()))


def replies_are_not_sent_again(patch: Patch) -> None:
    def attach(self: HostSession, peer: bytes, message: Any) -> None:
        original(self, peer, message)
        self._outbox.clear()

    original = HostSession.attach
    patch.setattr(HostSession, "attach", attach)


def client_takes_any_generation(patch: Patch) -> None:
    def receive(self: ClientSession, message: Any) -> None:
        message.fields["generation"] = self.generation
        original(self, message)

    original = ClientSession.receive
    patch.setattr(ClientSession, "receive", receive)


def worker_takes_any_connection(patch: Patch) -> None:
    patch.setattr(HostSession, "check", lambda self, peer, generation: None)


def repeats_are_not_skipped(patch: Patch) -> None:
    patch.setattr(HostSession, "admit", lambda self, first, count: 0)


def outcomes_are_not_imposed(patch: Patch) -> None:
    patch.setattr(CallLog, "replay_parts", CallLog.parts)


def late_failures_are_forgotten_with_their_calls(patch: Patch) -> None:
    def forget(self: LandedFailures, recoverable: int) -> None:
        self._told = {seq: told for seq, told in self._told.items() if seq > recoverable}

    patch.setattr(LandedFailures, "forget", forget)


def late_failures_are_never_acknowledged(patch: Patch) -> None:
    patch.setattr(LandedFailures, "__contains__", lambda self, seq: False)
    patch.setattr(LandedFailures, "tell", lambda self, last_seq: [])


def acknowledgements_pass_over_gaps(patch: Patch) -> None:
    patch.setattr(ClientSession, "_acked", lambda self: self.next_seq - 1)


def queries_are_not_asked_again(patch: Patch) -> None:
    def requeue(self: ClientSession, applied: int) -> None:
        self._queries.clear()
        original(self, applied)

    original = ClientSession._requeue
    patch.setattr(ClientSession, "_requeue", requeue)


def queries_are_asked_again_ahead_of_their_calls(patch: Patch) -> None:
    patch.setattr(client_module, "in_order", lambda batches, queries: [*queries, *batches])


def adopter_begins_with_the_first_seq(patch: Patch) -> None:
    def start(self: ClientSession, applied: int, inventory: Any) -> None:
        original(self, applied, inventory)
        self.open = OpenBatch(1)

    original = ClientSession._start_after
    patch.setattr(ClientSession, "_start_after", start)


def log_drops_what_is_applied(patch: Patch) -> None:
    def note(self: ClientSession, applied: int) -> None:
        original(self, applied)
        self.log.truncate(applied)

    original = ClientSession._note_applied
    patch.setattr(ClientSession, "_note_applied", note)


def an_adopter_may_begin_with_nothing(patch: Patch) -> None:
    start = Gateway._start
    patch.setattr(Gateway, "_start", lambda self, head, adopting: start(self, head, False))


def gateway_keeps_a_worker_whose_contexts_have_ended(patch: Patch) -> None:
    patch.setattr(Gateway, "_make_way", lambda self: None)


def an_error_is_heard_before_the_worker_is_given_up(patch: Patch) -> None:
    def claims(self: FaultRecovery, reply: Any, newest: int) -> bool:
        original(self, reply, newest)
        return False

    original = FaultRecovery.claims
    patch.setattr(FaultRecovery, "claims", claims)


MUTATIONS: list[tuple[Callable[[Patch], None], Bounds, set[str]]] = [
    (recoverable_is_the_newest_epoch, CRASHES, {"log_reaches_epochs"}),
    (truncation_is_off_by_one, CRASHES, {"log_reaches_epochs"}),
    (log_drops_what_is_applied, CRASHES, {"log_reaches_epochs"}),
    (replies_are_not_in_the_epoch, EPOCH, {"quiescence"}),
    (replies_are_not_sent_again, LINKS, {"quiescence"}),
    (client_takes_any_generation, TAKEOVER, {"nothing_acknowledged_lost"}),
    (worker_takes_any_connection, ADOPTION, {"applied_once_in_order", "log_reaches_epochs"}),
    (repeats_are_not_skipped, STUMBLES, {"applied_once_in_order"}),
    (outcomes_are_not_imposed, CRASHES, {"nothing_acknowledged_lost"}),
    (late_failures_are_forgotten_with_their_calls, EPOCHS, {"deferred_once"}),
    (late_failures_are_never_acknowledged, LINKS, {"deferred_once"}),
    (acknowledgements_pass_over_gaps, LINKS, {"quiescence"}),
    (queries_are_not_asked_again, Bounds({"A": (("ask",),)}, {"break": 1}, 1), {"quiescence"}),
    (queries_are_asked_again_ahead_of_their_calls, WATCH, {"data_first"}),
    (queries_are_not_asked_again, WATCH, {"quiescence"}),
    (an_adopter_may_begin_with_nothing, CORRUPTION, {"nothing_acknowledged_lost"}),
    (gateway_keeps_a_worker_whose_contexts_have_ended, POISON, {"spared"}),
    (an_error_is_heard_before_the_worker_is_given_up, POISON, {"spared"}),
    (adopter_begins_with_the_first_seq, ADOPTION, {"lost_only_without_a_way"}),
]


@pytest.mark.parametrize(
    ("mutate", "bounds", "caught_by"), MUTATIONS, ids=[m[0].__name__ for m in MUTATIONS]
)
def test_a_broken_rule_is_caught_when(
    mutate: Callable[[Patch], None],
    bounds: Bounds,
    caught_by: set[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mutate(monkeypatch)
    result = Explorer(bounds, 40_000).run()
    assert result.violation is not None, f"survived {result.states} states"
    assert result.violation.name in caught_by, result.explain()


def test_forgetting_the_old_client_before_the_journal_has_the_new_one_is_caught() -> None:
    bounds = Bounds({"A": (("alloc",),)}, {"unrecorded": 1, "break": 1}, 2)
    assert Explorer(bounds).run().violation is None
    result = Explorer(replace(bounds, forgets_early=True)).run()
    assert result.violation is not None
    assert result.violation.name == "quiescence"


def test_a_worker_that_drops_calls_without_a_word_is_caught() -> None:
    bounds = Bounds({"A": (("alloc",),)}, {"lapse": 1}, 1)
    assert Explorer(bounds).run().violation is None
    result = Explorer(replace(bounds, drops_silently=True)).run()
    assert result.violation is not None
    assert result.violation.name == "quiescence"
