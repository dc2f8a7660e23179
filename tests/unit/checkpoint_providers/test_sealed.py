"""Epochs in one open file: whole and verified, or refused."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from outlast.checkpoint_providers.samples import full_snapshot, snapshot_of
from outlast.checkpoint_providers.sealed import read_sealed, write_sealed
from outlast.errors import CheckpointCorrupt, CheckpointError


@pytest.fixture
def file() -> Iterator[int]:
    descriptor = os.memfd_create("sealed", os.MFD_CLOEXEC)
    yield descriptor
    os.close(descriptor)


def test_what_was_sealed_is_read_back(file: int) -> None:
    snapshot = full_snapshot()
    write_sealed(snapshot, file)
    with read_sealed(file) as reader:
        assert reader.manifest.epoch == snapshot.epoch
        for number, region in enumerate(snapshot.regions):
            assert reader.read(number) == bytes(region.buffer)


def test_an_epoch_without_any_bytes_can_be_sealed(file: int) -> None:
    snapshot = snapshot_of(seq=3, regions=[])
    write_sealed(snapshot, file)
    with read_sealed(file) as reader:
        assert reader.manifest.epoch.seq == 3
        assert not reader.manifest.regions


@pytest.mark.parametrize("offset", [0, 5000, 6000, -1, -9, -17, -30])
def test_a_flipped_bit_is_refused(file: int, offset: int) -> None:
    write_sealed(full_snapshot(), file)
    size = os.fstat(file).st_size
    place = offset % size
    os.pwrite(file, bytes([os.pread(file, 1, place)[0] ^ 4]), place)
    with pytest.raises(CheckpointError), read_sealed(file) as reader:
        reader.verify()


@pytest.mark.parametrize("left", [0, 1, 23, 24, 1000])
def test_a_cut_file_is_refused(file: int, left: int) -> None:
    write_sealed(full_snapshot(), file)
    os.ftruncate(file, left)
    with pytest.raises(CheckpointCorrupt):
        read_sealed(file)
