"""How alembic reaches the database: over the connection that ``store/schema.py`` passes to it."""

from alembic import context

from tenure.store.tables import Base

context.configure(connection=context.config.attributes["connection"], target_metadata=Base.metadata)
with context.begin_transaction():
    context.run_migrations()
