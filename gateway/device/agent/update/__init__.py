"""Updates on the device: polls, the work on each slot, settings, software, commit and roll-back."""
