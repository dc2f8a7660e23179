"""What a manifest accepts, and how it names what it does not."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from outlast.checkpoint_providers import Epoch, Handle, Image, Manifest, Reply
from outlast.checkpoint_providers.codec import canonical
from outlast.checkpoint_providers.manifest import (
    CHUNK_SIZE,
    MAX_MANIFEST,
    check_epoch,
    decode,
    seal,
)
from outlast.checkpoint_providers.samples import full_snapshot, snapshot_of
from outlast.checkpoint_providers.snapshot import Snapshot
from outlast.errors import CheckpointCorrupt, CheckpointError
from outlast.session.schema import HANDLE_FIRST, ReplyKind

U64_MAX = (1 << 64) - 1


def sealed(snapshot: Snapshot | None = None) -> tuple[Manifest, bytes]:
    snapshot = snapshot or full_snapshot()
    chunks = ["ab" * 32] * -(-snapshot.size // CHUNK_SIZE)
    return seal(snapshot.epoch, snapshot.lay_out(), chunks)


def document() -> dict[str, Any]:
    value: dict[str, Any] = json.loads(sealed()[1])
    return value


def resealed(value: dict[str, Any]) -> bytes:
    """Return the file of a writer that stores ``value`` with a right digest."""
    value.pop("digest", None)
    value["digest"] = blake3(canonical(value)).hexdigest()
    return canonical(value)


def test_a_sealed_manifest_reads_back_equal() -> None:
    manifest, raw = sealed()
    assert decode(raw, "m") == manifest


def test_each_flipped_bit_is_noticed() -> None:
    _, raw = sealed(snapshot_of())
    for bit in range(len(raw) * 8):
        damaged = bytearray(raw)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CheckpointCorrupt):
            decode(bytes(damaged), "m")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("format", True),
        ("format", "1"),
        ("data_file", "../data.bin"),
        ("data_file", "/etc/passwd"),
        ("data_size", 5011),
        ("data_size", -1),
        ("chunk_size", 1 << 20),
        ("chunks", []),
        ("chunks", ["AB" * 32]),
        ("chunks[0]", "ab" * 31),
        ("regions", {}),
        ("regions[0].kind", "code"),
        ("regions[0].key", "k" * 257),
        ("regions[1].offset", 4999),
        ("regions[1].length", U64_MAX),
        ("regions[2].key", 0),
        ("epoch", None),
        ("epoch.session_id", ""),
        ("epoch.session_id", "a\nb"),
        ("epoch.session_id", "x" * 129),
        ("epoch.incarnation", "FF" * 16),
        ("epoch.epoch_id", ".."),
        ("epoch.seq", U64_MAX + 1),
        ("epoch.seq", 1.0),
        ("epoch.seq", -1),
        ("epoch.created_at", 5),
        ("epoch.created_at", -1.0),
        ("epoch.devices[0].ordinal", 1 << 32),
        ("epoch.devices[0].name", None),
        ("epoch.handles[1].id", HANDLE_FIRST - 16),
        ("epoch.handles[0].recipe", []),
        ("epoch.handles[0].parents", [HANDLE_FIRST]),
        ("epoch.handles[1].parents", [HANDLE_FIRST + 160]),
        ("epoch.handles[1].parents", [True]),
        ("epoch.images[0].handle", 5),
        ("epoch.images[0].region", 0),
        ("epoch.images[0].region", 99),
        ("epoch.replies[0].kind", 9),
        ("epoch.replies[0].kind", False),
        ("epoch.replies[0].result", 1 << 31),
        ("epoch.replies[0].payload", 1),
        ("epoch.state", [1]),
    ],
)
def test_a_bad_value_is_named_by_file_and_field(path: str, value: object) -> None:
    broken = document()
    *way, last = path.replace("[", ".[").split(".")
    target: Any = broken
    for step in way:
        target = target[int(step[1:-1])] if step.startswith("[") else target[step]
    if path == "epoch.handles[1].id":  # a handle that stands twice
        value = target["id"] = HANDLE_FIRST
        assert broken["epoch"]["handles"][0]["id"] == value
    elif last.startswith("["):
        target[int(last[1:-1])] = value
    else:
        target[last] = value
    with pytest.raises(CheckpointCorrupt) as failure:
        decode(resealed(broken), "/somewhere/manifest.json")
    assert failure.value.fields["path"] == "/somewhere/manifest.json"
    assert path.split("[")[0] in str(failure.value.fields["field"])
    assert "/somewhere/manifest.json" in str(failure.value)


def test_a_missing_and_an_unknown_field_are_named() -> None:
    broken = document()
    del broken["epoch"]["handles"][0]["recipe"]
    with pytest.raises(CheckpointCorrupt, match=r"epoch\.handles\[0\]\.recipe: is missing"):
        decode(resealed(broken), "m")
    broken = document()
    broken["epoch"]["colour"] = 1
    with pytest.raises(CheckpointCorrupt, match=r"epoch\.colour: is an unknown field"):
        decode(resealed(broken), "m")


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"digest":1}',
        b"\x80\x04N.",
        b"\xff\xfe",
        b"NaN",
        b'{"a":1,"a":2}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"1" * 100_000,
    ],
)
def test_what_is_no_manifest_is_corrupt(raw: bytes) -> None:
    with pytest.raises(CheckpointCorrupt):
        decode(raw, "m")


@given(st.binary(max_size=200))
def test_random_bytes_are_corrupt(raw: bytes) -> None:
    with pytest.raises(CheckpointCorrupt):
        decode(raw, "m")


def test_another_spelling_of_the_same_manifest_is_corrupt() -> None:
    _, raw = sealed()
    for other in (json.dumps(json.loads(raw)).encode(), raw + b"\n", raw.replace(b"\\u", b"\\U")):
        with pytest.raises(CheckpointCorrupt):
            decode(other, "m")
    # One bit turns the escape's digit from lower to upper case: the same text.
    escaped = sealed(snapshot_of("ü"))[1]
    assert b"\\u00fc" in escaped
    with pytest.raises(CheckpointCorrupt, match="not spelled"):
        decode(escaped.replace(b"\\u00fc", b"\\u00fC"), "m")


def test_a_manifest_over_the_limit_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(CheckpointCorrupt, match="bytes, more than"):
        decode(b"[" + b" " * MAX_MANIFEST, "m")


def test_a_newer_format_is_read_if_it_says_so() -> None:
    newer = document()
    newer |= {"format": 2, "colour": "red"}
    newer["epoch"]["handles"][0]["shape"] = [1]
    manifest = decode(resealed(newer), "m")
    assert manifest.format == 2
    assert manifest.epoch == full_snapshot().epoch


def test_a_format_that_needs_a_newer_reader_is_refused_but_not_called_corrupt() -> None:
    newer = document() | {"format": 3, "least_reader": 2}
    with pytest.raises(CheckpointError, match="needs a reader of format 2") as failure:
        decode(resealed(newer), "m")
    assert not isinstance(failure.value, CheckpointCorrupt)


def epoch_with(**changes: object) -> Epoch:
    return dataclasses.replace(snapshot_of().epoch, **changes)  # type: ignore[arg-type]


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"a": value}
    return value


@pytest.mark.parametrize(
    "epoch",
    [
        epoch_with(state={"x": float("nan")}),
        epoch_with(state={"x": b"bytes"}),
        epoch_with(state=nested(100)),
        epoch_with(state=nested(100_000)),
        epoch_with(handles=(Handle(1, "k", 0, 0, {}), Handle(1, "k", 0, 0, {}))),
        epoch_with(handles=(Handle(HANDLE_FIRST, "k", 0, 0, {}, (HANDLE_FIRST + 16,)),)),
        epoch_with(images=(Image(1, 0),)),
        epoch_with(replies=(Reply(ReplyKind.OUTCOME, 1, 0, 0, payload=7),)),
        epoch_with(incarnation=b"0" * 16),
    ],
)
def test_an_epoch_that_could_not_be_read_is_not_written(epoch: Epoch) -> None:
    with pytest.raises(CheckpointError, match="cannot be stored"):
        check_epoch(epoch, ())


def test_constants_need_no_recipe() -> None:
    child = Handle(HANDLE_FIRST, "stream", 0, 1, {}, (HANDLE_FIRST - 16,))
    check_epoch(epoch_with(handles=(child,)), ())
    manifest, raw = seal(epoch_with(handles=(child,)), (), ())
    assert decode(raw, "m").epoch.handles == (child,)
    assert manifest.epoch.handles == (child,)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(0, U64_MAX)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(st.dictionaries(st.text(), json_values))
def test_any_json_state_comes_back(state: dict[str, Any]) -> None:
    _, raw = seal(epoch_with(state=state), (), ())
    assert decode(raw, "m").epoch.state == state
