"""Finding providers by name."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from outlast.checkpoint_providers import known_providers, open_provider
from outlast.checkpoint_providers.directory import DirectoryProvider
from outlast.checkpoint_providers.memory import MemoryProvider
from outlast.checkpoint_providers.registry import BUILT_IN, load_provider
from outlast.errors import CheckpointError, ConfigError, ProviderNotFound

PLUG_IN = """
from outlast.checkpoint_providers.memory import MemoryProvider

class Shelf(MemoryProvider):
    name = "shelf"

NOT_A_CLASS = 5
"""


@pytest.fixture
def plug_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install a distribution with one good provider and some broken ones."""
    (tmp_path / "shelf_plugin.py").write_text(PLUG_IN)
    (tmp_path / "broken_plugin.py").write_text("raise ZeroDivisionError('ouch')")
    info = tmp_path / "shelves-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shelves\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[outlast.checkpoint_providers]\n"
        "shelf = shelf_plugin:Shelf\n"
        "number = shelf_plugin:NOT_A_CLASS\n"
        "absent = shelf_plugin:Absent\n"
        "broken = broken_plugin:Provider\n"
        "directory = shelf_plugin:Shelf\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("shelf_plugin", None)


def test_built_in_providers_need_no_installation(tmp_path: Path) -> None:
    directory = open_provider(f"directory:{tmp_path}", environment={})
    assert isinstance(directory, DirectoryProvider)
    assert directory.root == tmp_path
    assert isinstance(open_provider("memory", environment={}), MemoryProvider)
    default = open_provider("directory", tmp_path, environment={})
    assert isinstance(default, DirectoryProvider)
    assert default.root == tmp_path / "checkpoints"


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ProviderNotFound, match=r"'tape'.*directory, memory") as failure:
        open_provider("tape:/dev/st0")
    assert isinstance(failure.value, LookupError)


def test_an_argument_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ConfigError):
        open_provider("memory:large")


@pytest.mark.usefixtures("plug_ins")
def test_a_plug_in_is_found_by_its_entry_point() -> None:
    assert "shelf" in known_providers()
    assert "shelf_plugin" not in sys.modules
    assert open_provider("shelf", environment={}).name == "shelf"


@pytest.mark.usefixtures("plug_ins")
def test_a_plug_in_cannot_replace_a_built_in_provider() -> None:
    assert load_provider("directory") is DirectoryProvider


@pytest.mark.usefixtures("plug_ins")
@pytest.mark.parametrize(
    ("name", "problem"),
    [("broken", "ZeroDivisionError: ouch"), ("absent", "Absent"), ("number", "no Checkpoint")],
)
def test_a_broken_plug_in_is_named(name: str, problem: str) -> None:
    with pytest.raises(CheckpointError, match=problem) as failure:
        open_provider(name)
    assert f"'{name}' of package 'shelves'" in str(failure.value)


def test_the_package_declares_what_is_built_in() -> None:
    declared = {
        entry.name: entry.value
        for entry in entry_points(group="outlast.checkpoint_providers")
        if entry.dist is not None and entry.dist.name == "outlast"
    }
    assert not declared or declared == BUILT_IN
