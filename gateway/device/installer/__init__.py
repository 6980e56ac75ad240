"""Installer of new versions of the programs on this device: the only part of the product that runs as root.

`places` and `environment` import nothing but the standard library and `common.files.durable`: `make install`
uses them from a checkout.
"""
