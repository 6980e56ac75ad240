"""The fleet: what publishes releases, the controller of the devices, and the command line of both.

It shares `gateway.common` with the device.
"""
