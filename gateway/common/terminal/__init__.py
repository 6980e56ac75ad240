"""Framework of all command lines: verbs with examples, exit codes, tables, JSON. Independent of other packages."""
