"""Runs the migrations on the connection that `substrate.store.migrate` hands over, in its transaction."""

from alembic import context

from substrate.store.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()
