"""Verification of signed metadata: bytes in, a verdict out. No disk, no network, no clock."""
