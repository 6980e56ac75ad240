"""Values, tables, decisions and ports. Imports the standard library and numpy, nothing else."""
