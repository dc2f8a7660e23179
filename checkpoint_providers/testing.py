"""The conformance suite of checkpoint providers, for plug-in authors.

A provider is supported when a subclass like this one passes::

    class TestMyProvider(ProviderConformance):
        @pytest.fixture
        def provider(self, tmp_path):
            return MyProvider(tmp_path)

        def stored(self, provider, location, file):
            return provider.path(location, file).read_bytes()

        def replace(self, provider, location, file, content):
            path = provider.path(location, file)
            path.unlink() if content is None else path.write_bytes(content)

It needs pytest and is not imported by anything else.
"""

# ruff: noqa: D102 - the names of the tests say what they say

from __future__ import annotations

import itertools
import pickle
import threading
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Final

import pytest

from outlast.checkpoint_providers.base import CheckpointProvider
from outlast.checkpoint_providers.codec import U64_MAX
from outlast.checkpoint_providers.manifest import CHUNK_SIZE, DATA_FILE, MANIFEST_FILE
from outlast.checkpoint_providers.pieces import PIECE
from outlast.checkpoint_providers.samples import (
    SIZES,
    PickleBomb,
    content_of,
    flipped,
    full_snapshot,
    regions_of,
    snapshot_of,
    sources_of,
)
from outlast.checkpoint_providers.snapshot import RegionBuffer, Snapshot, StoredEpoch
from outlast.checkpoint_providers.stages import Stage, StagePoint
from outlast.errors import CheckpointCancelled, CheckpointCorrupt, CheckpointError, OutlastError

#: Long enough for any step of these tests on a slow machine.
DEADLINE: Final = 30.0  # seconds
#: Ids that a path, a URL or a shell would trip over.
SESSION_IDS: Final = ("a", "A", "a/b", "../../x", "..", "ü✓漢", "a b%2F'\"$;\\", "x" * 128, "CON")


class ProviderConformance(ABC):
    """What every provider must do. Subclass it with a ``provider`` fixture."""

    @pytest.fixture
    def provider(self) -> CheckpointProvider:
        """Return an empty provider."""
        raise NotImplementedError("the subclass gives the provider")

    @abstractmethod
    def stored(self, provider: CheckpointProvider, location: str, file: str) -> bytes:
        """Return what is stored as ``file`` (`MANIFEST_FILE`, `DATA_FILE`) of an epoch."""

    @abstractmethod
    def replace(
        self, provider: CheckpointProvider, location: str, file: str, content: bytes | None
    ) -> None:
        """Damage a stored file: give it another content; None removes it."""

    def leftovers(self, provider: CheckpointProvider) -> list[str]:
        """Return what is stored beside published epochs, by name. Override it if you can."""
        return []

    def check_content(
        self, provider: CheckpointProvider, stored: StoredEpoch, snapshot: Snapshot
    ) -> None:
        """Assert that an epoch gives back exactly what was saved."""
        with provider.open(stored.location, stored.digest) as reader:
            assert reader.manifest.epoch == snapshot.epoch
            assert len(reader.manifest.regions) == len(snapshot.regions)
            reader.verify()
            for i, region in enumerate(snapshot.regions):
                found = reader.manifest.regions[i]
                assert (found.kind, found.key) == (region.kind, region.key)
                assert reader.read(found) == content_of(region)

    def check_damaged(
        self, provider: CheckpointProvider, location: str, file: str, content: bytes | None
    ) -> None:
        """Assert that a damaged file is noticed, and mend it."""
        whole = self.stored(provider, location, file)
        self.replace(provider, location, file, content)
        with pytest.raises(CheckpointCorrupt), provider.open(location) as reader:
            reader.verify()
        self.replace(provider, location, file, whole)

    def test_regions_of_any_size_come_back_unchanged(self, provider: CheckpointProvider) -> None:
        snapshot = snapshot_of(regions=regions_of(1))
        self.check_content(provider, provider.save(snapshot), snapshot)

    def test_regions_that_are_read_at_their_turn_come_back_unchanged(
        self, provider: CheckpointProvider
    ) -> None:
        buffers = regions_of(1, [*SIZES, 2 * PIECE + 9, 5])
        early, late = sources_of(buffers[:6]), sources_of(buffers[8:])
        snapshot = snapshot_of(regions=[*early, *buffers[6:8], *late])
        self.check_content(provider, provider.save(snapshot), snapshot)

    def test_regions_come_in_pieces_of_which_none_is_large(
        self, provider: CheckpointProvider
    ) -> None:
        snapshot = snapshot_of(regions=regions_of(1, [*SIZES, 2 * PIECE + 9, 5]))
        found = [bytearray(region.nbytes) for region in snapshot.regions]
        with provider.open(provider.save(snapshot).location) as reader:
            regions = reader.manifest.regions
            for region, offset, part in reader.parts(regions):
                assert 0 < len(part) <= PIECE
                found[regions.index(region)][offset : offset + len(part)] = part
        assert found == [content_of(region) for region in snapshot.regions]

    def test_thousands_of_small_regions_come_back_unchanged(
        self, provider: CheckpointProvider
    ) -> None:
        snapshot = snapshot_of(regions=regions_of(1, [7] * 3000))
        self.check_content(provider, provider.save(snapshot), snapshot)

    def test_an_epoch_without_regions_comes_back(self, provider: CheckpointProvider) -> None:
        snapshot = snapshot_of(regions=[])
        self.check_content(provider, provider.save(snapshot), snapshot)

    def test_every_table_comes_back_at_its_extremes(self, provider: CheckpointProvider) -> None:
        snapshot = full_snapshot()
        stored = provider.save(snapshot)
        self.check_content(provider, stored, snapshot)
        assert (stored.seq, stored.token) == (U64_MAX, U64_MAX)
        assert provider.list(snapshot.epoch.session_id) == [stored]

    def test_regions_are_read_into_buffers_of_the_caller(
        self, provider: CheckpointProvider
    ) -> None:
        snapshot = snapshot_of(regions=regions_of(1))
        with provider.open(provider.save(snapshot).location) as reader:
            for i in reversed(range(len(SIZES))):
                buffer = bytearray(SIZES[i])
                reader.read_into(i, memoryview(buffer))
                assert buffer == content_of(snapshot.regions[i])

    def test_a_buffer_that_does_not_fit_is_refused(self, provider: CheckpointProvider) -> None:
        with provider.open(provider.save(snapshot_of()).location) as reader:
            for buffer in (bytearray(999), bytearray(1001), bytes(1000)):
                with pytest.raises(CheckpointError):
                    reader.read_into(0, memoryview(buffer))
            with pytest.raises(CheckpointError):
                reader.read(1)

    def test_an_epoch_is_restored_twice_in_a_row(self, provider: CheckpointProvider) -> None:
        snapshot = snapshot_of(regions=regions_of(1))
        stored = provider.save(snapshot)
        self.check_content(provider, stored, snapshot)
        self.check_content(provider, stored, snapshot)

    @pytest.mark.parametrize("session_id", SESSION_IDS)
    def test_any_session_id_works(self, provider: CheckpointProvider, session_id: str) -> None:
        snapshot = snapshot_of(session_id)
        stored = provider.save(snapshot)
        self.check_content(provider, stored, snapshot)
        assert provider.list(session_id) == [stored]

    def test_names_do_not_give_the_session_away(self, provider: CheckpointProvider) -> None:
        stored = provider.save(snapshot_of("hush-hush"))
        assert "hush" not in stored.location

    def test_sessions_do_not_see_each_other(self, provider: CheckpointProvider) -> None:
        stored = {name: provider.save(snapshot_of(name)) for name in SESSION_IDS}
        assert len({each.location for each in stored.values()}) == len(SESSION_IDS)
        provider.delete(stored["a"].location)
        provider.clean("A", {stored["A"].location})
        assert provider.list("a") == []
        for name in SESSION_IDS[1:]:
            assert provider.list(name) == [stored[name]]

    def test_epochs_are_listed_oldest_first(self, provider: CheckpointProvider) -> None:
        order = [(1, 5), (1, 30), (2, 4), (10, 1)]
        for token, seq in sorted(order, key=lambda each: each[1]):
            provider.save(snapshot_of(seq=seq, token=token))
        listed = provider.list("conformance")
        assert [(each.token, each.seq) for each in listed] == order

    def test_an_unknown_session_has_no_epochs(self, provider: CheckpointProvider) -> None:
        assert provider.list("nobody") == []
        assert provider.clean("nobody", frozenset()) == ()

    def test_deleting_twice_is_deleting_once(self, provider: CheckpointProvider) -> None:
        stored = provider.save(snapshot_of())
        provider.delete(stored.location)
        provider.delete(stored.location)
        assert provider.list("conformance") == []
        with pytest.raises(CheckpointCorrupt):
            provider.open(stored.location)

    def test_an_epoch_is_never_overwritten(self, provider: CheckpointProvider) -> None:
        first = snapshot_of()
        stored = provider.save(first)
        with pytest.raises(CheckpointError):
            provider.save(snapshot_of())
        self.check_content(provider, stored, first)
        assert self.leftovers(provider) == []

    def test_cleaning_removes_only_what_is_older_than_the_newest_kept(
        self, provider: CheckpointProvider
    ) -> None:
        stored = [provider.save(snapshot_of(seq=seq)) for seq in range(1, 6)]
        provider.clean("conformance", frozenset())
        assert provider.list("conformance") == stored
        provider.clean("conformance", {stored[1].location, stored[3].location})
        assert provider.list("conformance") == [stored[1], stored[3], stored[4]]

    def test_cleaning_removes_the_uncommitted_epochs_of_older_writers(
        self, provider: CheckpointProvider
    ) -> None:
        provider.save(snapshot_of(seq=900, token=1))
        kept = provider.save(snapshot_of(seq=500, token=2))
        provider.clean("conformance", {kept.location})
        assert provider.list("conformance") == [kept]

    def test_a_flipped_bit_of_any_chunk_is_noticed(self, provider: CheckpointProvider) -> None:
        location = provider.save(snapshot_of(regions=regions_of(1))).location
        data = self.stored(provider, location, DATA_FILE)
        for start in range(0, len(data), CHUNK_SIZE):
            for offset in (start, min(start + CHUNK_SIZE, len(data)) - 1):
                self.check_damaged(provider, location, DATA_FILE, flipped(data, offset))

    def test_a_damaged_chunk_does_not_hide_the_whole_ones(
        self, provider: CheckpointProvider
    ) -> None:
        snapshot = snapshot_of(regions=regions_of(1, [CHUNK_SIZE, CHUNK_SIZE]))
        location = provider.save(snapshot).location
        data = self.stored(provider, location, DATA_FILE)
        self.replace(provider, location, DATA_FILE, flipped(data, 0))
        with provider.open(location) as reader:
            assert reader.read(1) == content_of(snapshot.regions[1])
            with pytest.raises(CheckpointCorrupt):
                reader.read(0)

    def test_a_flipped_bit_of_the_manifest_is_noticed(self, provider: CheckpointProvider) -> None:
        location = provider.save(full_snapshot()).location
        raw = self.stored(provider, location, MANIFEST_FILE)
        for offset in {*range(0, len(raw), 17), len(raw) - 1}:
            for bit in (0, 5):
                self.check_damaged(provider, location, MANIFEST_FILE, flipped(raw, offset, bit))

    @pytest.mark.parametrize("file", [DATA_FILE, MANIFEST_FILE])
    def test_a_file_of_another_length_is_noticed(
        self, provider: CheckpointProvider, file: str
    ) -> None:
        location = provider.save(snapshot_of(regions=regions_of(1))).location
        whole = self.stored(provider, location, file)
        for content in (b"", whole[:-1], whole[: len(whole) // 2], whole + b"\0", whole + b" "):
            self.check_damaged(provider, location, file, content)

    @pytest.mark.parametrize("file", [DATA_FILE, MANIFEST_FILE])
    def test_a_missing_file_is_noticed(self, provider: CheckpointProvider, file: str) -> None:
        location = provider.save(snapshot_of()).location
        self.check_damaged(provider, location, file, None)

    def test_a_damaged_epoch_hides_no_other(self, provider: CheckpointProvider) -> None:
        first = provider.save(snapshot_of(seq=1))
        second = provider.save(snapshot_of(seq=2))
        self.replace(provider, second.location, MANIFEST_FILE, b"{}")
        assert provider.list("conformance") == [first]
        self.check_content(provider, first, snapshot_of(seq=1))

    def test_an_epoch_in_the_place_of_another_is_refused(
        self, provider: CheckpointProvider
    ) -> None:
        first = provider.save(snapshot_of(seq=1))
        second = provider.save(snapshot_of(seq=2))
        for file in (MANIFEST_FILE, DATA_FILE):
            content = self.stored(provider, first.location, file)
            self.replace(provider, second.location, file, content)
        with pytest.raises(CheckpointCorrupt):
            provider.open(second.location)
        with pytest.raises(CheckpointCorrupt):
            provider.open(first.location, digest="0" * 64)

    def test_no_pickle_is_ever_executed(self, provider: CheckpointProvider, tmp_path: Path) -> None:
        marker = tmp_path / "marker"
        bomb = pickle.dumps(PickleBomb(marker))
        location = provider.save(snapshot_of(regions=regions_of(1, [len(bomb)]))).location
        for file in (MANIFEST_FILE, DATA_FILE):
            self.check_damaged(provider, location, file, bomb)
        self.replace(provider, location, MANIFEST_FILE, bomb)
        provider.list("conformance")
        assert not marker.exists()

    def test_a_pickle_in_a_region_is_only_bytes(
        self, provider: CheckpointProvider, tmp_path: Path
    ) -> None:
        marker = tmp_path / "marker"
        snapshot = snapshot_of(
            regions=[RegionBuffer("memory", "0", pickle.dumps(PickleBomb(marker)))]
        )
        self.check_content(provider, provider.save(snapshot), snapshot)
        assert not marker.exists()

    @pytest.mark.parametrize(
        "location",
        ["", "/", "/etc/passwd", "..", "../x/y", "x", "a/b/c", "\0", "0" * 32, "memory:1"],
    )
    def test_a_foreign_location_is_refused(
        self, provider: CheckpointProvider, location: str
    ) -> None:
        provider.save(snapshot_of())
        with pytest.raises(CheckpointError):
            provider.open(location)
        with pytest.raises(CheckpointError):
            provider.delete(location)

    def test_dots_in_a_location_are_refused(self, provider: CheckpointProvider) -> None:
        location = provider.save(snapshot_of()).location
        session, token, epoch = location.split("/")
        for other in (
            f"{session}/{token}/../{token}/{epoch}",
            f"./{location}",
            f"{location}/.",
            f"{location}\n",
        ):
            with pytest.raises(CheckpointError):
                provider.open(other)

    def test_cancelling_leaves_nothing_behind(self, provider: CheckpointProvider) -> None:
        first = provider.save(snapshot_of(seq=1))
        cancelled = threading.Event()

        def cancel_halfway(done: int, total: int) -> None:
            if done * 2 >= total:
                cancelled.set()

        with pytest.raises(CheckpointCancelled):
            provider.save(snapshot_of(seq=2, regions=regions_of(2)), cancelled, cancel_halfway)
        assert provider.list("conformance") == [first]
        assert self.leftovers(provider) == []

    def test_a_cancelled_save_starts_nothing(self, provider: CheckpointProvider) -> None:
        cancelled = threading.Event()
        cancelled.set()
        with pytest.raises(CheckpointCancelled):
            provider.save(snapshot_of(), cancelled)
        assert provider.list("conformance") == []
        assert self.leftovers(provider) == []

    def test_progress_reaches_the_size(self, provider: CheckpointProvider) -> None:
        snapshot = snapshot_of(regions=regions_of(1))
        seen: list[tuple[int, int]] = []
        provider.save(snapshot, progress=lambda done, total: seen.append((done, total)))
        assert seen == sorted(seen)
        assert seen[-1] == (sum(SIZES), sum(SIZES))

    @pytest.mark.parametrize("stage", [s for s in Stage if s is not Stage.READ])
    def test_a_failed_save_leaves_the_older_epoch_and_the_next_one_works(
        self, provider: CheckpointProvider, stage: Stage
    ) -> None:
        first = snapshot_of(seq=1, regions=regions_of(1))
        stored = provider.save(first)

        def fail(point: StagePoint) -> None:
            if point.stage is stage:
                raise OSError(28, "No space left on device")

        provider.stage_hook = fail
        with pytest.raises(CheckpointError) as failure:
            provider.save(snapshot_of(seq=2, regions=regions_of(2)))
        provider.stage_hook = None
        assert failure.value.fields["errno"] == 28
        assert provider.list("conformance") == [stored]
        assert self.leftovers(provider) == []
        self.check_content(provider, stored, first)
        second = snapshot_of(seq=2, regions=regions_of(2))
        self.check_content(provider, provider.save(second), second)

    def test_an_epoch_no_reader_would_take_is_refused_at_once(
        self, provider: CheckpointProvider
    ) -> None:
        region = RegionBuffer("memory", "0", b"a")
        strided = RegionBuffer("memory", "0", memoryview(bytes(8))[::2])
        for snapshot in (
            snapshot_of(regions=[region, region]),
            snapshot_of(regions=[strided]),
            snapshot_of(regions=[RegionBuffer("other", "0", b"a")]),
            snapshot_of(seq=U64_MAX + 1, regions=[]),
            snapshot_of(session_id="line\nbreak"),
        ):
            with pytest.raises(OutlastError):
                provider.save(snapshot)
        assert provider.list("conformance") == []
        assert self.leftovers(provider) == []

    def test_saves_of_one_session_take_turns(self, provider: CheckpointProvider) -> None:
        owners: list[str] = []
        provider.stage_hook = lambda _: owners.append(threading.current_thread().name)
        threads = [
            threading.Thread(target=provider.save, args=(snapshot_of(seq=seq),))
            for seq in range(1, 5)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE)
            assert not thread.is_alive()
        changes = sum(a != b for a, b in itertools.pairwise(owners))
        assert changes == len(threads) - 1
        assert [each.seq for each in provider.list("conformance")] == [1, 2, 3, 4]

    def test_a_save_that_waits_for_its_turn_can_be_cancelled(
        self, provider: CheckpointProvider
    ) -> None:
        inside, go_on = threading.Event(), threading.Event()

        def wait(point: StagePoint) -> None:
            inside.set()
            assert go_on.wait(DEADLINE)

        provider.stage_hook = wait
        first = threading.Thread(target=provider.save, args=(snapshot_of(seq=1),))
        first.start()
        assert inside.wait(DEADLINE)
        cancelled = threading.Event()
        cancelled.set()
        with pytest.raises(CheckpointCancelled):
            provider.save(snapshot_of(seq=2), cancelled)
        go_on.set()
        first.join(DEADLINE)
        assert [each.seq for each in provider.list("conformance")] == [1]

    def test_what_is_listed_during_a_save_is_whole(self, provider: CheckpointProvider) -> None:
        first = snapshot_of(seq=1, regions=regions_of(1))
        stored = provider.save(first)
        seen: list[list[StoredEpoch]] = []
        provider.stage_hook = lambda point: seen.append(provider.list("conformance"))
        second = provider.save(snapshot_of(seq=2, regions=regions_of(2)))
        provider.stage_hook = None
        assert len(seen) >= len(Stage) - 1
        assert all(each == [stored] for each in seen)
        assert provider.list("conformance") == [stored, second]
        self.check_content(provider, stored, first)
