"""Edge inference gateway: the device half (see ARCHITECTURE.md)."""

__version__ = "0.2.0.dev0"

RELEASED = "2026-11-21"
"""Day of this version, UTC: the clock cannot rightly be earlier. Update it with every entry of CHANGELOG.md."""
