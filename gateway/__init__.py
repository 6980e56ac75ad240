"""Edge inference gateway: the device half (see ARCHITECTURE.md)."""

__version__ = "0.1.0"

RELEASED = "2026-11-21"
"""The day of this version, UTC: no clock can rightly be before it. Set anew with every entry of CHANGELOG.md."""
