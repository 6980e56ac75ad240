"""The controller's database: SQLAlchemy Core on SQLite or PostgreSQL, migrated by Alembic. See README.md."""
