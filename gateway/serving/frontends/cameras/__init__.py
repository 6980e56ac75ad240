"""Cameras of the gateway: a child process reads each, and its newest frame is a request to a model."""
