"""Rules on results: which state of a sensor is published, and when. No I/O, and the clock is passed in."""
