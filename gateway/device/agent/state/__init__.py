"""State of the device that outlasts a restart: identity, store, slots, and what its policy has counted."""
