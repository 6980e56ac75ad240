"""The update agent: a process of its own beside the daemon, which it talks to over the control socket only."""
