"""Pipelines: several models that answer to one name, from a picture to a decision."""
