"""Storage on disk: the model library, the store of the update agent, and the state that survives a restart."""
