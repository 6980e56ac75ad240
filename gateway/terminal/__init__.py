"""The frame of every command line here: verbs with examples, exit codes, tables, JSON. Knows no room."""
