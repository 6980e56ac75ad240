"""Tools for a model's author: a manifest from model files, and quantized variants of a model."""
