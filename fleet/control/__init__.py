"""What the controller does: enrols, signs assignments, takes in reports, steers rollouts. Synchronous, no HTTP."""
