"""The handle table, against a dict and through restarts."""

from __future__ import annotations

import copy
import time

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from outlast.session.handles import Handle, HandleKind, HandleTable
from outlast.session.schema import HANDLE_STEP

KINDS = st.sampled_from(HandleKind)


def handle(number: int, kind: HandleKind = HandleKind.STREAM, *parents: int) -> Handle:
    return Handle(number, kind, number + 1000, number, {"n": number}, parents)


def test_an_object_is_found_by_its_kind_and_id():
    table = HandleTable()
    stream = handle(16)
    table.add(stream)
    assert table.get(HandleKind.STREAM, 16) is stream
    assert table.get(HandleKind.EVENT, 16) is None
    assert table.get(HandleKind.STREAM, 32) is None
    assert table.real[HandleKind.STREAM] == {16: 1016}


def test_an_id_in_use_is_refused():
    table = HandleTable()
    table.add(handle(16))
    with pytest.raises(KeyError, match="0x10 is already in use"):
        table.add(handle(16, HandleKind.EVENT))


def test_the_id_of_a_failed_creation_is_refused():
    table = HandleTable()
    table.dead.add(16)
    with pytest.raises(KeyError, match="0x10"):
        table.add(handle(16))


def test_a_child_of_what_is_gone_is_refused():
    table = HandleTable()
    with pytest.raises(KeyError, match="depends on 0x10"):
        table.add(handle(32, HandleKind.FUNCTION, 16))
    assert 32 not in table


def test_what_depends_on_an_object_goes_with_it_and_before_it():
    table = HandleTable()
    table.add(handle(16, HandleKind.CONTEXT))
    table.add(handle(32, HandleKind.MODULE, 16))
    table.add(handle(48, HandleKind.FUNCTION, 32))
    table.add(handle(64, HandleKind.STREAM))
    removed = [h.id for h in table.remove(16)]
    assert removed == [48, 32, 16]
    assert [h.id for h in table.ordered()] == [64]
    assert not table.real[HandleKind.FUNCTION]


def test_removing_what_is_not_there_removes_nothing():
    assert HandleTable().remove(16) == []


def test_the_next_id_is_above_everything_that_was_ever_used():
    table = HandleTable()
    table.add(handle(16))
    table.add(handle(48))
    table.remove(48)
    assert table.next_id(HANDLE_STEP) == 64
    table.dead.add(96)
    assert table.next_id(HANDLE_STEP) == 112
    table.reserve(160)
    assert table.next_id(HANDLE_STEP) == 176


def test_destroying_many_objects_one_by_one_is_quick():
    table = HandleTable()
    table.add(handle(16, HandleKind.CONTEXT))
    ids = range(32, 32 + 20_000 * 16, 16)
    for number in ids:
        table.add(handle(number, HandleKind.EVENT, 16))
    began = time.process_time()
    for number in ids:
        table.remove(number)
    assert time.process_time() - began < 2.0
    assert len(table) == 1


class HandleMachine(RuleBasedStateMachine):
    """The table against a dict, with restarts that rebuild it from what it says."""

    handles = Bundle("handles")

    def __init__(self) -> None:
        super().__init__()
        self.table = HandleTable()
        self.model: dict[int, Handle] = {}
        self.used: set[int] = set()

    @rule(target=handles, kind=KINDS, parents=st.lists(handles, max_size=2, unique=True))
    def create(self, kind: HandleKind, parents: list[int]) -> int:
        number = self.table.next_id(HANDLE_STEP)
        assert number not in self.used
        new = handle(number, kind, *parents)
        self.used.add(number)
        if all(parent in self.model for parent in parents):
            self.table.add(new)
            self.model[number] = new
        else:
            with pytest.raises(KeyError):
                self.table.add(new)
            self.table.dead.add(number)
        return number

    @rule(number=handles)
    def create_again(self, number: int) -> None:
        if number in self.model or number in self.table.dead:
            with pytest.raises(KeyError):
                self.table.add(handle(number))

    @rule(number=handles)
    def destroy(self, number: int) -> None:
        gone = {number} & set(self.model)
        while True:
            more = {h.id for h in self.model.values() if gone & set(h.parents)} - gone
            if not more:
                break
            gone |= more
        removed = [h.id for h in self.table.remove(number)]
        assert set(removed) == gone
        assert len(removed) == len(gone)
        for index, identifier in enumerate(removed):
            assert not set(self.model[identifier].parents) & set(removed[:index])
        for identifier in gone:
            del self.model[identifier]

    @rule(number=handles, kind=KINDS)
    def look_up(self, number: int, kind: HandleKind) -> None:
        found = self.model.get(number)
        expected = found if found is not None and found.kind is kind else None
        assert self.table.get(kind, number) == expected
        assert (number in self.table) == (number in self.model)

    @rule(offset=st.integers(1, 1000))
    def restart(self, offset: int) -> None:
        """Make everything again from the recipes; the device gives other handles."""
        fresh = HandleTable()
        for old in copy.deepcopy(list(self.table.ordered())):
            old.real += offset
            fresh.add(old)
        fresh.dead.update(self.table.dead)
        fresh.reserve(self.table.next_id(HANDLE_STEP) - HANDLE_STEP)
        self.table = fresh
        self.model = {h.id: h for h in fresh.ordered()}

    @invariant()
    def table_and_model_agree(self) -> None:
        assert {h.id: h for h in self.table.ordered()} == self.model
        assert len(self.table) == len(self.model)
        for kind in HandleKind:
            live = {h.id: h.real for h in self.model.values() if h.kind is kind}
            assert self.table.real[kind] == live

    @invariant()
    def parents_come_first(self) -> None:
        seen: set[int] = set()
        for each in self.table.ordered():
            assert set(each.parents) <= seen
            seen.add(each.id)


TestHandleMachine = HandleMachine.TestCase
