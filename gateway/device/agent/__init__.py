"""Update agent: a separate process that reaches the daemon by its control socket only."""
