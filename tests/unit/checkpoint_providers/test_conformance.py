"""The shipped conformance suite, run on the built-in providers."""

from __future__ import annotations

from pathlib import Path

import pytest

from outlast.checkpoint_providers import CheckpointProvider
from outlast.checkpoint_providers.directory import DirectoryProvider
from outlast.checkpoint_providers.memory import MemoryProvider
from outlast.checkpoint_providers.testing import ProviderConformance


class TestDirectory(ProviderConformance):
    @pytest.fixture
    def provider(self, tmp_path: Path) -> DirectoryProvider:
        return DirectoryProvider(tmp_path / "root")

    def stored(self, provider: CheckpointProvider, location: str, file: str) -> bytes:
        assert isinstance(provider, DirectoryProvider)
        return (provider.root / location / file).read_bytes()

    def replace(
        self, provider: CheckpointProvider, location: str, file: str, content: bytes | None
    ) -> None:
        assert isinstance(provider, DirectoryProvider)
        path = provider.root / location / file
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content)

    def leftovers(self, provider: CheckpointProvider) -> list[str]:
        assert isinstance(provider, DirectoryProvider)
        return [str(path) for path in provider.root.rglob(".*")]


class TestMemory(ProviderConformance):
    @pytest.fixture
    def provider(self) -> MemoryProvider:
        return MemoryProvider()

    def stored(self, provider: CheckpointProvider, location: str, file: str) -> bytes:
        assert isinstance(provider, MemoryProvider)
        return bytes(provider.files(location)[file])

    def replace(
        self, provider: CheckpointProvider, location: str, file: str, content: bytes | None
    ) -> None:
        assert isinstance(provider, MemoryProvider)
        if content is None:
            del provider.files(location)[file]
        else:
            provider.files(location)[file] = content
