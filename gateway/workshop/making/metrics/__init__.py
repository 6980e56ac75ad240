"""Metrics of results against expected ones. Pure functions; each says its formula and its source."""
