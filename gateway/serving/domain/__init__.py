"""Values, tables and decisions."""
