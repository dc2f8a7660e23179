"""Alembic environment: runs inside the transaction that `outlast.migrations.runner` opened."""

from alembic import context

from outlast.session.models import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    # SQLite changes a column by copying its table.
    render_as_batch=True,
)
context.run_migrations()
