"""Connections of the device to its controller and repository, and what is fetched over them."""
