"""Edge inference gateway: the device half (see ARCHITECTURE.md)."""

__version__ = "0.1.0"
