"""Catalogue of the log events of `edge-software`: each name, when it is logged, and its fields.

The agent's README.md has them in its table, with their levels.
"""

from __future__ import annotations

SOFTWARE_UPDATE_BEGUN = "software update begun"
"""A request was verified and recorded; the build is next: `version`, `environment`."""
SOFTWARE_PHASE_BEGUN = "software phase begun"
"""The next phase of the update is recorded and begins: `version`, `phase`."""
SOFTWARE_PHASE_FAILED = "software phase failed"
"""A phase that can no longer be given up failed, and is repeated until it succeeds: `phase`, `problem`."""
SOFTWARE_UPDATE_FAILED = "software update failed"
"""The update failed or was given up, and is rolled back: `version`, `phase`, in which that was, and `reason`."""
SOFTWARE_UPDATE_ENDED = "software update ended"
"""The update has ended: `version`, `outcome`, which is done or rolled-back."""
SOFTWARE_REQUEST_REFUSED = "software request refused"
"""A request was not valid, or cannot be carried out; the agent gets the reason: `problem`."""
SOFTWARE_REQUEST_NOT_READ = "software request not read"
"""The connection was lost before a request was complete: `problem`."""
SOFTWARE_REQUEST_NOT_ANSWERED = "software request not answered"
"""A request was handled, but the connection was lost before the answer: `problem`."""
