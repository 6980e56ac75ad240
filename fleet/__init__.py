"""The fleet: what publishes releases, the controller of the devices, and the command line of both.

It shares `gateway.domain` and `gateway.trust` with the device.
"""
