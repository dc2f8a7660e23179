"""What the directory provider does with the file system."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from outlast.checkpoint_providers import RegionBuffer
from outlast.checkpoint_providers.directory import DirectoryProvider
from outlast.checkpoint_providers.manifest import DATA_FILE, MANIFEST_FILE
from outlast.checkpoint_providers.samples import regions_of, snapshot_of
from outlast.checkpoint_providers.stages import Stage, StagePoint
from outlast.checkpoint_providers.testing import DEADLINE
from outlast.errors import CheckpointCorrupt, CheckpointError, ConfigError

SESSION = "conformance"
MIB = 1 << 20


def refuse_files(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Have the file system refuse every new file."""

    def refuse(path: Path) -> int:
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr("outlast.checkpoint_providers.directory.create_file", refuse)


@pytest.fixture
def provider(tmp_path: Path) -> DirectoryProvider:
    return DirectoryProvider(tmp_path / "a" / "root")


def leftovers(provider: DirectoryProvider) -> list[Path]:
    return list(provider.root.rglob(".*"))


def verified(provider: DirectoryProvider, location: str) -> bool:
    with provider.open(location) as reader:
        reader.verify()
    return True


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_check_makes_the_folder_and_leaves_nothing_in_it(provider: DirectoryProvider) -> None:
    provider.check()
    assert list(provider.root.iterdir()) == []


def test_a_check_of_a_folder_that_cannot_be_made_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / "epochs"
    with pytest.raises(ConfigError, match="--provider directory:FOLDER") as caught:
        DirectoryProvider(folder).check()
    assert f"cannot be stored below {folder}: " in str(caught.value)


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.EIO])
def test_a_check_refuses_a_folder_that_takes_no_file(
    provider: DirectoryProvider, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    refuse_files(monkeypatch, number)
    with pytest.raises(ConfigError, match=os.strerror(number)):
        provider.check()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_check_only_warns_of_a_full_disk_whose_epochs_can_be_read(
    provider: DirectoryProvider,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    number: int,
) -> None:
    refuse_files(monkeypatch, number)
    provider.check()
    assert os.strerror(number) in caplog.text


def test_only_the_owner_can_read_what_is_stored(provider: DirectoryProvider) -> None:
    before = os.umask(0)
    try:
        stored = provider.save(snapshot_of())
    finally:
        os.umask(before)
    folder = provider.root / stored.location
    made = [folder, *folder.parents][:5]
    assert made[-1] == provider.root.parent
    assert {path.stat().st_mode & 0o777 for path in made} == {0o700}
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}


def test_every_new_entry_is_made_durable(
    provider: DirectoryProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    sync = os.fsync

    def record(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    stored = provider.save(snapshot_of())
    folder = provider.root / stored.location
    outer = provider.root.parent.parent
    assert synced[:4] == [str(p) for p in (outer, outer / "a", provider.root, folder.parents[1])]
    data, manifest, hidden, token = synced[4:]
    assert (Path(data).name, Path(manifest).name) == (DATA_FILE, MANIFEST_FILE)
    assert Path(hidden).name.startswith(f".{folder.name}.")
    assert token == str(folder.parent)


def test_a_full_file_system_is_named_and_leaves_the_older_epoch(
    provider: DirectoryProvider,
) -> None:
    first = provider.save(snapshot_of(seq=1))
    with file_size_limit(2 * MIB + 100), pytest.raises(CheckpointError) as failure:
        provider.save(snapshot_of(seq=2, regions=regions_of(2, [3 * MIB])))
    fields = failure.value.fields
    assert (fields["errno"], fields["needed"]) == (errno.EFBIG, 3 * MIB)
    assert str(provider.root) in str(fields["path"])
    assert f"{3 * MIB} bytes" in str(failure.value)
    assert leftovers(provider) == []
    assert provider.list(SESSION) == [first]
    assert verified(provider, first.location)
    assert provider.save(snapshot_of(seq=2, regions=regions_of(2, [3 * MIB]))).seq == 2


def test_a_small_file_system_that_fills_up_can_be_used_again(tmp_path: Path) -> None:
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(tmp_path)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("mounting a file system is not allowed here")
    try:
        provider = DirectoryProvider(tmp_path / "root")
        first = provider.save(snapshot_of(seq=1, regions=regions_of(1, [3 * MIB])))
        with pytest.raises(CheckpointError) as failure:
            provider.save(snapshot_of(seq=2, regions=regions_of(2, [6 * MIB])))
        assert failure.value.fields["errno"] == errno.ENOSPC
        assert leftovers(provider) == []
        assert verified(provider, first.location)
        second = provider.save(snapshot_of(seq=2, regions=regions_of(2, [4 * MIB])))
        assert verified(provider, second.location)
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_what_a_dead_writer_left_is_removed_and_what_a_live_one_writes_is_not(
    provider: DirectoryProvider,
) -> None:
    kept = provider.save(snapshot_of(seq=1))
    dead = (provider.root / kept.location).with_name(".00000000000000000002-dead.0")
    dead.mkdir()
    (dead / DATA_FILE).write_bytes(b"half")
    writing, go_on = threading.Event(), threading.Event()
    other = DirectoryProvider(provider.root)

    def wait(point: StagePoint) -> None:
        if point.stage is Stage.FSYNC:
            writing.set()
            assert go_on.wait(DEADLINE)

    other.stage_hook = wait
    thread = threading.Thread(target=other.save, args=(snapshot_of(seq=3, token=2),))
    thread.start()
    assert writing.wait(DEADLINE)
    removed = provider.clean(SESSION, {kept.location})
    live = leftovers(provider)
    go_on.set()
    thread.join(DEADLINE)
    assert removed == (str(dead.relative_to(provider.root)),)
    assert len(live) == 1
    assert [each.seq for each in provider.list(SESSION)] == [1, 3]


def test_files_of_others_are_left_alone(provider: DirectoryProvider) -> None:
    stored = provider.save(snapshot_of())
    token = (provider.root / stored.location).parent
    for path in (token / "notes", token.parent / "notes", provider.root / "notes"):
        path.mkdir()
    provider.clean(SESSION, {stored.location})
    assert provider.list(SESSION) == [stored]
    assert len(list(provider.root.rglob("notes"))) == 3


def test_a_session_whose_epochs_are_deleted_leaves_no_folder(provider: DirectoryProvider) -> None:
    stored = [provider.save(snapshot_of(seq=seq, token=seq)) for seq in (1, 2)]
    other = provider.save(snapshot_of("other"))
    for each in stored:
        provider.delete(each.location)
    assert [path.name for path in provider.root.iterdir()] == [other.location.split("/")[0]]


@pytest.mark.parametrize("level", [0, 1, 2])
def test_a_link_in_a_location_is_not_followed(
    provider: DirectoryProvider, tmp_path: Path, level: int
) -> None:
    stored = provider.save(snapshot_of())
    path = [(provider.root / stored.location), *(provider.root / stored.location).parents][level]
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointCorrupt):
        provider.open(stored.location)
    if level > 0:
        with pytest.raises(CheckpointError):
            provider.save(snapshot_of(seq=2))
    with pytest.raises(CheckpointError):
        provider.delete(stored.location)
    assert len(list((tmp_path / "elsewhere").rglob(DATA_FILE))) == 1


@pytest.mark.parametrize("file", [DATA_FILE, MANIFEST_FILE])
@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_what_is_no_plain_file_is_not_read(
    provider: DirectoryProvider, tmp_path: Path, file: str, kind: str
) -> None:
    stored = provider.save(snapshot_of())
    path = provider.root / stored.location / file
    path.rename(tmp_path / "moved")
    if kind == "link":
        path.symlink_to(tmp_path / "moved")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    with pytest.raises(CheckpointCorrupt):
        provider.open(stored.location)


def test_the_root_may_be_a_link_and_may_be_moved(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    stored = DirectoryProvider(tmp_path / "link").save(snapshot_of())
    (tmp_path / "real").rename(tmp_path / "moved")
    assert verified(DirectoryProvider(tmp_path / "moved"), stored.location)


def test_a_root_that_is_no_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(CheckpointError) as failure:
        DirectoryProvider(tmp_path / "file").save(snapshot_of())
    assert str(tmp_path / "file") in str(failure.value)


def test_a_reader_keeps_its_epoch_while_it_is_deleted(provider: DirectoryProvider) -> None:
    snapshot = snapshot_of()
    stored = provider.save(snapshot)
    with provider.open(stored.location) as reader:
        provider.delete(stored.location)
        assert reader.read(0) == snapshot.regions[0].buffer
    with pytest.raises(CheckpointError, match="closed"):
        reader.read(0)


def test_no_descriptor_is_left_open(provider: DirectoryProvider) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = descriptors()
    stored = provider.save(snapshot_of())
    with pytest.raises(CheckpointError):
        provider.save(snapshot_of())
    provider.list(SESSION)
    provider.clean(SESSION, {stored.location})
    (provider.root / stored.location / MANIFEST_FILE).write_bytes(b"{}")
    with pytest.raises(CheckpointCorrupt):
        provider.open(stored.location)
    assert descriptors() == before


def test_an_image_region_may_be_any_buffer(provider: DirectoryProvider) -> None:
    grid = memoryview(bytearray(range(24))).cast("H").cast("B").cast("B", (4, 6))
    stored = provider.save(snapshot_of(regions=[RegionBuffer("memory", "0", grid)]))
    with provider.open(stored.location) as reader:
        target = bytearray(24)
        reader.read_into(0, memoryview(target).cast("B", (2, 12)))
        assert target == bytes(range(24))


def test_the_folder_comes_from_the_spec_or_the_state(tmp_path: Path) -> None:
    assert DirectoryProvider.from_spec(str(tmp_path), None).root == tmp_path
    assert DirectoryProvider.from_spec("", tmp_path).root == tmp_path / "checkpoints"
    with pytest.raises(ConfigError):
        DirectoryProvider.from_spec("", None)
