"""The documentation names everything that can be set, called or sent."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from outlast.config import CLIENT_SETTINGS, SERVE_SETTINGS
from outlast.session import layout, operations, schema

ROOT = Path(__file__).resolve().parents[2]
PROTOCOL = ROOT / "docs" / "protocol.md"
CONFIGURATION = ROOT / "docs" / "configuration.md"
#: Variables that only the emulated device reads.
EMULATED_DEVICE = {"LUPINE_EMULATED_MEMORY", "OUTLAST_CACHE_DIR"}


def rows(page: Path) -> list[list[str]]:
    """Return the cells of every table row of a page, without code quotes."""
    lines = page.read_text(encoding="utf-8").splitlines()
    return [
        [cell.strip().strip("`") for cell in line.strip("| ").split(" | ")]
        for line in lines
        if line.startswith("|")
    ]


@pytest.mark.parametrize("name", ["gen_protocol_doc", "gen_driver_doc"])
def test_a_generated_page_is_current(name):
    script = ROOT / "tools" / f"{name}.py"
    done = subprocess.run(
        [sys.executable, str(script), "--check"], capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 0, done.stderr


def test_every_message_and_operation_has_its_section():
    headings = re.findall(r"^### (\w+)$", PROTOCOL.read_text(), re.MULTILINE)
    expected = {kind.name for kind in schema.Kind} | {op.name for op in operations.Op}
    assert expected <= set(headings)
    assert len(headings) == len(set(headings))


def test_every_message_and_operation_says_what_it_is():
    assert set(schema.MESSAGES) == set(schema.Kind)
    assert set(operations.OPS) == set(operations.Op)
    specs = [*schema.MESSAGES.values(), *operations.OPS.values()]
    assert all(spec.doc.endswith(".") or spec.doc.endswith("?") for spec in specs)


def test_every_field_type_is_explained():
    records = [spec.fields for spec in schema.MESSAGES.values()]
    records += [fields for spec in operations.OPS.values() for fields in (spec.fields, spec.reply)]
    used = {field.type for fields in records for field in fields}
    assert used <= set(layout.TYPES)
    assert set(layout.TYPES) <= {row[0] for row in rows(PROTOCOL)}


@pytest.mark.parametrize("name", SERVE_SETTINGS)
def test_a_server_setting_is_documented_with_its_flag_variable_and_default(name):
    entry = SERVE_SETTINGS[name]
    assert [entry.flag, entry.env, entry.default] in [row[:3] for row in rows(CONFIGURATION)]


@pytest.mark.parametrize("name", CLIENT_SETTINGS)
def test_a_client_setting_is_documented_with_its_variable_and_default(name):
    entry = CLIENT_SETTINGS[name]
    assert [entry.env, entry.default] in [row[:2] for row in rows(CONFIGURATION)]


def test_the_settings_page_names_nothing_that_is_not_a_setting():
    named = set(re.findall(r"`((?:LUPINE|OUTLAST)_\w+)`", CONFIGURATION.read_text()))
    settings = {s.env for s in (*SERVE_SETTINGS.values(), *CLIENT_SETTINGS.values())}
    assert named == settings | EMULATED_DEVICE


def test_the_readme_stays_short_and_its_links_lead_somewhere():
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 120
    targets = re.findall(r"\]\(([^)#:]+)\)", text)
    assert targets
    assert not [target for target in targets if not (ROOT / target).exists()]
