"""Samples of windows on disk, from before their acknowledgement until the results of their windows are delivered."""
