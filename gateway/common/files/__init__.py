"""Files that are trusted after a power failure: shared by the device half and the controller."""
