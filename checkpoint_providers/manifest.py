"""What a stored epoch says about itself: all that a restore needs, as JSON, never pickle.

The file holds the canonical JSON of a `Manifest`, and `decode` accepts no other spelling
of it, so that each bit of the file is covered by `Manifest.digest` or by that rule. The
bytes of memory, images and replies lie in one data file beside it, cut into chunks of
4 MiB whose digests the manifest lists.

Every format but the first is read by two releases: a reader takes its own format and the
one before, and a newer one that names it as able to (`Manifest.least_reader`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Final

from blake3 import blake3

from outlast.checkpoint_providers.codec import (
    JSON,
    U64_MAX,
    Malformed,
    array,
    as_object,
    canonical,
    hexadecimal,
    i32,
    integer,
    json_object,
    member,
    one_of,
    optional,
    parse,
    record,
    text,
    timestamp,
    u32,
    u64,
    unknown_fields_allowed,
)
from outlast.checkpoint_providers.locations import check_epoch_id
from outlast.errors import CheckpointCorrupt, CheckpointError, ConfigError
from outlast.session.ids import check_session_id
from outlast.session.schema import HANDLE_FIRST, ReplyKind

#: Format this version writes.
FORMAT: Final = 1
#: Oldest reader that understands what this version writes.
LEAST_READER: Final = 1
#: Bytes of the data file that one digest covers.
CHUNK_SIZE: Final = 4 << 20  # 4 MiB
#: A larger manifest is neither written nor read.
MAX_MANIFEST: Final = 128 << 20  # 128 MiB
MANIFEST_FILE: Final = "manifest.json"
DATA_FILE: Final = "data.bin"
REGION_KINDS: Final = ("memory", "image", "reply")

U32 = Annotated[int, u32]
U64 = Annotated[int, u64]
I32 = Annotated[int, i32]


def _session_id(value: Any, path: str) -> str:
    try:
        return check_session_id(text(128)(value, path))
    except ConfigError as error:
        raise Malformed(path, str(error)) from error


def _epoch_id(value: Any, path: str) -> str:
    try:
        return check_epoch_id(text(64)(value, path))
    except CheckpointError as error:
        raise Malformed(path, str(error)) from error


@dataclass(frozen=True, slots=True)
class Device:
    """A device the session saw, so that a restore finds or refuses a like one."""

    ordinal: U32
    uuid: Annotated[str, text(128)]
    name: Annotated[str, text(256)]
    total_memory: U64  # bytes
    arena_base: U64


@dataclass(frozen=True, slots=True)
class Handle:
    """A live CUDA object and how to make it again."""

    id: U64
    kind: Annotated[str, text(64)]
    generation: U64
    created_seq: U64
    recipe: Annotated[dict[str, JSON], json_object]
    #: Handles it needs; each is a constant or stands earlier in `Epoch.handles`.
    parents: Annotated[tuple[int, ...], array(u64)] = ()


@dataclass(frozen=True, slots=True)
class Allocation:
    """A live range of device memory."""

    address: U64
    size: U64  # bytes
    device: U32
    created_seq: U64


@dataclass(frozen=True, slots=True)
class Image:
    """The code a module handle was loaded from."""

    handle: U64
    #: Index of a region of kind ``image``; modules of equal code may share it.
    region: U32


@dataclass(frozen=True, slots=True)
class Reply:
    """An outcome the client has not acknowledged: a restored worker sends it again."""

    kind: Annotated[ReplyKind, member(ReplyKind)]
    #: Seq of the call, or qid of the query.
    number: U64
    #: ``CUresult`` value.
    result: I32
    value: U64
    #: Index of a region of kind ``reply`` with its bytes, if it has any.
    payload: Annotated[int | None, optional(u32)] = None


@dataclass(frozen=True, slots=True)
class DeferredError:
    """A failure of a one-way call that no waiting call has reported yet."""

    seq: U64
    #: ``CUresult`` value.
    result: I32
    reason: Annotated[str, text(4096)] = ""


@dataclass(frozen=True, slots=True)
class Epoch:
    """Everything but bytes of a session's cut after call `seq`."""

    session_id: Annotated[str, _session_id]
    #: Hexadecimal.
    incarnation: Annotated[str, hexadecimal(32)]
    #: 1 to 64 letters, digits, ``-`` and ``_``; unlike that of every other attempt.
    epoch_id: Annotated[str, _epoch_id]
    seq: U64
    generation: U64
    #: Fencing token of the writer.
    token: U64
    #: Seconds since 1970.
    created_at: Annotated[float, timestamp]
    devices: Annotated[tuple[Device, ...], array(record(Device))]
    handles: Annotated[tuple[Handle, ...], array(record(Handle))]
    allocations: Annotated[tuple[Allocation, ...], array(record(Allocation))]
    images: Annotated[tuple[Image, ...], array(record(Image))]
    replies: Annotated[tuple[Reply, ...], array(record(Reply))]
    deferred_errors: Annotated[tuple[DeferredError, ...], array(record(DeferredError))]
    #: Whatever else the worker must know to go on.
    state: Annotated[dict[str, JSON], json_object]


@dataclass(frozen=True, slots=True)
class Region:
    """A run of bytes in the data file."""

    #: ``memory``, ``image`` or ``reply``.
    kind: Annotated[str, one_of(*REGION_KINDS)]
    #: The writer's name for it, unique within its kind.
    key: Annotated[str, text(256)]
    offset: U64
    length: U64


@dataclass(frozen=True, slots=True)
class Manifest:
    """A stored epoch: its tables, the map of its data file, and the digests of both."""

    format: Annotated[int, integer(1, U64_MAX)]
    least_reader: Annotated[int, integer(1, U64_MAX)]
    epoch: Annotated[Epoch, record(Epoch)]
    #: They fill the data file from its start to its end.
    regions: Annotated[tuple[Region, ...], array(record(Region))]
    data_file: Annotated[str, one_of(DATA_FILE)]
    data_size: U64
    chunk_size: Annotated[int, integer(CHUNK_SIZE, CHUNK_SIZE)]
    #: BLAKE3 of each chunk of the data file, in order; the last one may be short.
    chunks: Annotated[tuple[str, ...], array(hexadecimal(64))]
    #: BLAKE3 of the canonical JSON without this field.
    digest: Annotated[str, hexadecimal(64)]


_check_manifest = record(Manifest)


def lay_out(sizes: Sequence[tuple[str, str, int]]) -> tuple[Region, ...]:
    """Return the regions of a data file for ``(kind, key, length)`` in order."""
    regions = []
    offset = 0
    for kind, key, length in sizes:
        regions.append(Region(kind, key, offset, length))
        offset += length
    return tuple(regions)


def check_epoch(epoch: Epoch, regions: tuple[Region, ...]) -> None:
    """Refuse tables that no reader would take.

    Raises
    ------
    CheckpointError
        A value is out of range or the tables contradict each other; names the field.
    """
    chunks = ("0" * 64,) * -(-_end(regions) // CHUNK_SIZE)
    with _refusing(epoch):
        raw = canonical(_unsealed(epoch, regions, chunks))
        _check_size(len(raw))
        _check_tables(parse(raw))


def seal(
    epoch: Epoch, regions: tuple[Region, ...], chunks: Sequence[str]
) -> tuple[Manifest, bytes]:
    """Return the manifest of an epoch that passed `check_epoch`, and its file's bytes."""
    manifest = _unsealed(epoch, regions, tuple(chunks))
    body = as_object(manifest)
    del body["digest"]
    with _refusing(epoch):
        sealed = dataclasses.replace(manifest, digest=blake3(canonical(body)).hexdigest())
        return sealed, canonical(sealed)


def decode(raw: bytes, source: str) -> Manifest:
    """Return the manifest in ``raw``, which was read from ``source``.

    Raises
    ------
    CheckpointCorrupt
        Any bit of it is not as it was written; names ``source`` and the field.
    CheckpointError
        Only a newer version of Outlast can read it.
    """
    try:
        return _decode(raw)
    except Malformed as error:
        raise CheckpointCorrupt(f"{source}: {error}", path=source, field=error.path) from error
    except _Unreadable as error:
        raise CheckpointError(f"{source}: {error}", path=source) from error


def chunk_length(manifest: Manifest, index: int) -> int:
    """Return the bytes that chunk ``index`` has."""
    return min(CHUNK_SIZE, manifest.data_size - index * CHUNK_SIZE)


class _Unreadable(Exception):
    """The document follows a format this version does not know."""


@contextmanager
def _refusing(epoch: Epoch) -> Iterator[None]:
    try:
        yield
    except Malformed as error:
        raise CheckpointError(
            f"the epoch cannot be stored: {error}",
            session_id=epoch.session_id,
            field=error.path,
        ) from error


def _unsealed(epoch: Epoch, regions: tuple[Region, ...], chunks: tuple[str, ...]) -> Manifest:
    return Manifest(
        format=FORMAT,
        least_reader=LEAST_READER,
        epoch=epoch,
        regions=regions,
        data_file=DATA_FILE,
        data_size=_end(regions),
        chunk_size=CHUNK_SIZE,
        chunks=chunks,
        digest="0" * 64,
    )


def _decode(raw: bytes) -> Manifest:
    _check_size(len(raw))
    document = parse(raw)
    if type(document) is not dict:
        raise Malformed("manifest", "is not an object")
    _check_digest(document, raw)
    return _check_tables(document)


def _check_size(size: int) -> None:
    if size > MAX_MANIFEST:
        raise Malformed("manifest", f"has {size} bytes, more than {MAX_MANIFEST}")


def _check_tables(document: dict[str, Any]) -> Manifest:
    with unknown_fields_allowed(_check_format(document)):
        manifest: Manifest = _check_manifest(document, "manifest")
    _check_regions(manifest)
    _check_references(manifest)
    return manifest


def _check_digest(document: dict[str, Any], raw: bytes) -> None:
    body = dict(document)
    digest = hexadecimal(64)(body.pop("digest", None), "manifest.digest")
    if blake3(canonical(body)).hexdigest() != digest:
        raise Malformed("manifest.digest", "does not match the rest of the manifest")
    if canonical(document) != raw:
        raise Malformed("manifest", "is not spelled as it was written")


def _check_format(document: dict[str, Any]) -> bool:
    """Return whether the document is of a newer format that this version can still read."""
    number = integer(1, U64_MAX)
    found: int = number(document.get("format"), "manifest.format")
    least: int = number(document.get("least_reader"), "manifest.least_reader")
    if found < FORMAT - 1 or least > FORMAT:
        raise _Unreadable(
            f"has format {found} and needs a reader of format {least} or newer; "
            f"this version reads {max(1, FORMAT - 1)} to {FORMAT}"
        )
    return found > FORMAT


def _end(regions: tuple[Region, ...]) -> int:
    return regions[-1].offset + regions[-1].length if regions else 0


def _check_regions(manifest: Manifest) -> None:
    end = 0
    names = set()
    for i, region in enumerate(manifest.regions):
        if region.offset != end:
            raise Malformed(f"manifest.regions[{i}].offset", f"expected {end}")
        end += region.length
        if (region.kind, region.key) in names:
            raise Malformed(f"manifest.regions[{i}].key", f"{region.key!r} stands twice")
        names.add((region.kind, region.key))
    if manifest.data_size != end:
        raise Malformed("manifest.data_size", f"expected {end}")
    if len(manifest.chunks) != -(-end // CHUNK_SIZE):
        raise Malformed("manifest.chunks", f"expected {-(-end // CHUNK_SIZE)} digests")


def _check_references(manifest: Manifest) -> None:
    epoch = manifest.epoch
    seen: set[int] = set()
    for i, handle in enumerate(epoch.handles):
        path = f"manifest.epoch.handles[{i}]"
        if handle.id in seen:
            raise Malformed(f"{path}.id", f"{handle.id:#x} stands twice")
        # Handles below HANDLE_FIRST are constants that exist without a recipe.
        for parent in handle.parents:
            if parent >= HANDLE_FIRST and parent not in seen:
                raise Malformed(f"{path}.parents", f"{parent:#x} does not stand before it")
        seen.add(handle.id)
    for i, image in enumerate(epoch.images):
        if image.handle not in seen:
            raise Malformed(f"manifest.epoch.images[{i}].handle", "is no handle of the epoch")
        _check_index(manifest, image.region, "image", f"manifest.epoch.images[{i}].region")
    for i, reply in enumerate(epoch.replies):
        if reply.payload is not None:
            _check_index(manifest, reply.payload, "reply", f"manifest.epoch.replies[{i}].payload")


def _check_index(manifest: Manifest, index: int, kind: str, path: str) -> None:
    if index >= len(manifest.regions) or manifest.regions[index].kind != kind:
        raise Malformed(path, f"region {index} is not of kind {kind}")
