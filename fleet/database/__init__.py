"""What the controller must not forget: SQLAlchemy Core on SQLite or PostgreSQL, migrated by Alembic. See README.md."""
