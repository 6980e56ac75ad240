"""Thousands of simulated devices in one process: real HTTP, real mutual TLS, real signatures. See module `simulate`."""
