"""Releases from registries, web servers and buckets, pinned by digest, for devices without a fleet."""
