"""Control API: status of what is served, and commands of the update agent, on a UNIX socket of its own."""
