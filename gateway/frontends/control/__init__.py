"""The control API: what serves, by which weights, and why; commands of the update agent. A UNIX socket of its own."""
