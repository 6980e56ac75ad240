"""The fleet controller and its command line. It shares `gateway.domain` and `gateway.trust` with the device.

The modules of this level publish: keys, drafts, releases, the repository that devices read, assignments. The packages
hold the controller.
"""
