"""What lies on disk: the model library, and the small state that outlives a restart."""
