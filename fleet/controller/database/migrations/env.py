"""Alembic's environment for `fleet.controller.database.migrate`.

That module passes its connection and ends the transaction.
"""

from __future__ import annotations

from alembic import context

from fleet.controller.database.tables import metadata

# SQLite can change tables within a transaction; Alembic assumes otherwise because Python's default BEGIN cannot.
context.configure(connection=context.config.attributes["connection"], target_metadata=metadata, transactional_ddl=True)
with context.begin_transaction():
    context.run_migrations()
