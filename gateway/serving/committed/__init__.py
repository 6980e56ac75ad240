"""Committed releases that may serve: signatures verified, files checked against them. Reads the disk only."""
