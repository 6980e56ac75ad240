"""Interpretation of a model's outputs in the terms of its task: boxes, classes, text. Pure functions on arrays."""
