"""Measurement of one model on this device: the front ends of a gateway, and the bare runtime in the same run."""
