"""Migrations and models describe the same tables."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from helpers.journal import create
from sqlalchemy import inspect

from outlast.errors import ConfigError
from outlast.migrations import current_revision, downgrade, head_revision, upgrade
from outlast.migrations.head import HEAD
from outlast.session.database import open_engine
from outlast.session.models import metadata
from outlast.session.store import Store


@pytest.fixture
def engine(journal_url):
    engine = open_engine(journal_url)
    yield engine
    engine.dispose()


def differences(engine):
    options = {"compare_type": True, "compare_server_default": True}
    with engine.connect() as connection:
        return compare_metadata(MigrationContext.configure(connection, opts=options), metadata)


def test_the_newest_revision_is_what_the_models_say(engine):
    upgrade(engine)
    assert differences(engine) == []


def test_the_comparison_sees_a_missing_index(engine):
    upgrade(engine)
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP INDEX ix_sessions_owner")
    assert [difference[0] for difference in differences(engine)] == ["add_index"]


def test_constraints_have_the_names_that_later_migrations_rely_on(engine):
    upgrade(engine)
    with engine.connect() as connection:
        inspector = inspect(connection)
        for table in metadata.sorted_tables:
            keys = inspector.get_foreign_keys(table.name)
            assert {key["name"] for key in keys} == {
                constraint.name for constraint in table.foreign_key_constraints
            }
            assert inspector.get_pk_constraint(table.name)["name"] == f"pk_{table.name}"


def test_a_journal_goes_down_to_nothing_and_up_again(engine):
    upgrade(engine)
    create(Store(engine))
    downgrade(engine, "base")
    assert current_revision(engine) is None
    with engine.connect() as connection:
        assert inspect(connection).get_table_names() == ["alembic_version"]
    assert upgrade(engine)
    assert current_revision(engine) == head_revision()
    assert differences(engine) == []
    assert Store(engine).sessions() == []


def test_a_downgrade_to_an_unknown_revision_is_a_setting_error(engine):
    upgrade(engine)
    with pytest.raises(ConfigError, match="no-such-revision"):
        downgrade(engine, "no-such-revision")
    assert current_revision(engine) == head_revision()


def test_the_head_that_is_known_without_alembic_is_the_head() -> None:
    assert head_revision() == HEAD


def test_alembic_is_not_loaded_for_a_journal_that_is_at_its_head(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/journal.db"
    program = (
        "import sys; from outlast.session.database import open_engine;"
        "from outlast.migrations import upgrade;"
        "print(upgrade(open_engine(sys.argv[1])), 'alembic' in sys.modules)"
    )
    run = [sys.executable, "-c", program, url]
    said = [subprocess.check_output(run, text=True, timeout=60).split() for _ in range(2)]
    assert said == [["True", "True"], ["False", "False"]]
