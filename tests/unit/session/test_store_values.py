"""Unsigned 64-bit values survive the journal, and compare right across 2**63."""

from __future__ import annotations

import itertools

import pytest
from helpers.journal import EDGES, create, epoch
from sqlalchemy import case, func, literal, select

from outlast.errors import JournalValueError
from outlast.session.models import allocations, handles, metadata, sessions
from outlast.session.rows import Allocated, HandleCreated
from outlast.session.sqltypes import OFFSET, U64

#: Largest size that keeps the end of an allocation inside the address space.
PAGE = 4096


@pytest.mark.parametrize("value", EDGES)
def test_every_handle_and_allocation_column_gives_back_what_was_written(store, value):
    token = create(store)
    created = HandleCreated("stream", value, value, {"address": value}, value)
    allocated = Allocated(value, value, 0, value, value)
    store.record("train", token, [created, allocated])
    (handle,) = store.handles("train")
    (allocation,) = store.allocations("train")
    assert (handle.id, handle.generation, handle.created_seq) == (value, value, value)
    assert handle.recipe == {"address": value}
    assert (allocation.address, allocation.size, allocation.flags) == (value, value, value)
    assert allocation.created_seq == value


@pytest.mark.parametrize("value", EDGES)
def test_every_epoch_and_session_column_gives_back_what_was_written(store, value):
    token = create(store)
    store.commit_epoch("train", token, epoch(value, value, size=value))
    parked = store.park("train", token, value, "segmentation fault")
    (row,) = store.epochs("train")
    assert (row.epoch, row.seq, row.size) == (value, value, value)
    assert parked == store.session("train")
    assert (parked.failed_seq, parked.last_epoch) == (value, value)


@pytest.mark.parametrize("value", EDGES)
def test_a_row_is_found_by_equality(store, value):
    token = create(store)
    store.record("train", token, [HandleCreated("event", v, 0, {}, 1) for v in EDGES])
    with store.engine.connect() as connection:
        found = connection.scalars(select(handles.c.id).where(handles.c.id == value)).all()
    assert found == [value]


def test_rows_are_ordered_across_the_sign_bit(store):
    token = create(store)
    store.record("train", token, [Allocated(v, 1, 0, 0, 1) for v in reversed(EDGES)])
    assert [row.address for row in store.allocations("train")] == sorted(EDGES)
    with store.engine.connect() as connection:
        bounds = connection.execute(
            select(func.min(allocations.c.address), func.max(allocations.c.address))
        ).one()
        above = connection.scalars(
            select(allocations.c.address).where(allocations.c.address >= 2**63)
        ).all()
    assert tuple(bounds) == (0, 2**64 - 1)
    assert sorted(above) == [2**63, 2**64 - 1]


@pytest.mark.parametrize("base", [0, 2**63 - 2 * PAGE, 2**63 - PAGE // 2, 2**63, 2**64 - PAGE])
def test_the_allocation_that_contains_an_address_is_found(store, base):
    token = create(store)
    store.record("train", token, [Allocated(base, PAGE, 0, 0, 1)])
    for inside in (base, base + 1, base + PAGE // 2, base + PAGE - 1):
        found = store.allocation_at("train", inside)
        assert found is not None
        assert found.address == base
    outside = [a for a in (base - 1, base + PAGE) if 0 <= a < 2**64]
    assert [store.allocation_at("train", address) for address in outside] == [None] * len(outside)


@pytest.mark.parametrize("value", EDGES)
def test_inlined_literals_stay_exact_integers(store, value):
    token = create(store)
    store.record("train", token, [HandleCreated("event", v, 0, {}, 1) for v in EDGES])
    kind = func.typeof if store.engine.dialect.name == "sqlite" else func.pg_typeof
    inlined = literal(value, U64, literal_execute=True)
    query = select(handles.c.id, kind(inlined).cast(sessions.c.id.type)).where(
        handles.c.id == case((handles.c.id == inlined, inlined), else_=None)
    )
    with store.engine.connect() as connection:
        (row,) = connection.execute(query).all()
    assert row.id == value
    assert row[1] in ("integer", "bigint")


@pytest.mark.parametrize("value", [-1, 2**64, 1.5, "7", OFFSET * 4])
def test_a_value_outside_64_bits_is_refused_with_a_typed_error(store, value):
    token = create(store)
    with pytest.raises(JournalValueError, match="unsigned 64-bit"):
        store.record("train", token, [Allocated(value, 1, 0, 0, 1)])
    assert store.allocations("train") == []


def test_arithmetic_in_sql_is_refused():
    with pytest.raises(TypeError, match="compute in Python"):
        allocations.c.address + allocations.c.size


def test_every_integer_of_the_driver_is_an_unsigned_column():
    columns = itertools.chain.from_iterable(t.columns for t in metadata.sorted_tables)
    signed = {str(c) for c in columns if c.type.python_type is int and not isinstance(c.type, U64)}
    assert signed == {"allocations.device"}
