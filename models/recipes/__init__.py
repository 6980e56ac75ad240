"""Build-time recipes: train the shipped models and write every variant of them. Never imported by the gateway."""
