"""Files that survive a power failure."""
