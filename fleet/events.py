"""Catalogue of the log events of the controller: the form of each message, and when it is logged.

A message begins with the event's name, which searches use. Levels, meanings and remedies:
fleet/controller/monitoring/README.md.
"""

from __future__ import annotations

# ---- start, port and requests ----------------------------------------------------------------------------------------
CONTROLLER_STARTING = "controller starting: %s in %s, database %s, addresses %s; it says when it serves"
"""The first line of `serve`: version, the publisher's folder, kind of database or SQLite's file, addresses."""
PROBLEM_FOUND = "problem found: %s: %s; %s"
"""At the start, for each finding of `edge-fleet doctor`: where, the problem, the remedy."""
CHECKS_NOT_COMPLETED = "checks not completed: %s; solve this, then run edge-fleet doctor"
"""At the start, if not all findings of `edge-fleet doctor` could be read: the problem."""
OPEN_FILES_LIMITED = (
    "open files limited: [serve] allows up to %d, this process may open %d; "
    "raise its limit (LimitNOFILE of the unit, or ulimit -n), or lower max_connections"
)
"""At the start, if connections may need more open files than the system allows: both numbers."""
SERVER_CERTIFICATE_NOT_RENEWED = "server certificate not renewed: %s; the port keeps the present one and tries again"
"""There is another certificate for the port, but it cannot be used: the problem."""
REQUEST_ANSWERED = "request answered: %s %s %s %s %s %d %d bytes %.1f ms"
"""For each request, by the logger `fleet.access`: id, address, caller, method, path, status, bytes, duration."""
REQUEST_CUT_OFF = "request cut off: %s %s; it did not end before the controller stopped"
"""The controller stops, and a request still runs after the grace period: its id and path."""
REQUEST_CRASHED = "request crashed: %s %s; report this defect with the traceback"
"""An unexpected error ended a request, which is answered 500: its id and path."""

# ---- periodic work ---------------------------------------------------------------------------------------------------
PERIODIC_WORK_FAILED = "periodic work failed: %s: %s; it is repeated"
"""Work of a thread could not be done now: the thread's name and the problem."""
PERIODIC_WORK_CRASHED = "periodic work crashed: %s; it is repeated; report this defect with the traceback"
"""An unexpected error ended one call of a thread's work: the thread's name."""
MAINTENANCE_JOB_FAILED = "maintenance job failed: %s: %s; it is repeated"
"""A maintenance job could not be done now: its name and the problem."""
MAINTENANCE_JOB_CRASHED = "maintenance job crashed: %s; it is repeated; report this defect with the traceback"
"""An unexpected error ended a maintenance job: its name."""
UPLOADS_EXPIRED = "uploads expired: %d removed"
"""Uploads that were not continued, and files that no draft names, were removed: their number."""
CLOCK_DOUBTED = (
    "clock doubted: it shows %s, %s later than expected; "
    "records expire as of %s until it has advanced evenly for %g s; set it if it is wrong"
)
"""The system's clock leapt ahead, or is far beyond the records: its time, the leap, the trusted time, the period."""
CLOCK_TRUSTED = "clock trusted: it shows %s, and records expire by it again"
"""A clock that was doubted was set back, or has advanced evenly for a while: its time."""

# ---- leadership and rollouts -----------------------------------------------------------------------------------------
LEADERSHIP_ACQUIRED = "leadership acquired: %s, fence %d"
"""This replica leads now: its name and its fencing token."""
ROLLOUTS_NOT_EVALUATED = (
    "rollouts not evaluated: between %s and %s (no controller, no database, or a clock that leapt); "
    "their timers are extended by that gap"
)
"""The leader evaluates rollouts after a gap: its begin and end."""
ROLLOUT_SKIPPED = "rollout skipped: %s: %s; the next tick tries again"
"""The database kept the evaluation of one rollout waiting: the rollout and the problem."""
ROLLOUT_EVALUATION_CRASHED = (
    "rollout evaluation crashed: %s; the next tick tries again; report this defect with the traceback"
)
"""An unexpected error ended the evaluation of one rollout: the rollout."""

# ---- publication, keys and releases ----------------------------------------------------------------------------------
PUBLICATION_RENEWED = "publication renewed: timestamp and snapshot were signed"
"""The controller signed timestamp and snapshot before they expire."""
PUBLICATION_RENEWAL_POSTPONED = "publication renewal postponed: %s"
"""Timestamp and snapshot have to be signed, but another process uses the publisher's folder: the problem."""
PUBLICATION_NOT_READ = (
    "publication not read: devices get the publication that was read before; "
    "the traceback has the problem; run edge-fleet verify"
)
"""Another timestamp is published, but what it names cannot be read."""
KEY_LOADED = "key loaded: %s"
"""An online key that was missing was found in the folder of keys: its file."""
KEY_NOT_LOADED = "key not loaded: %s; it is tried again when it is needed"
"""An online key cannot be loaded, logged once for each problem: the problem."""
RELEASES_NOT_READ = "releases not read: %s; the releases known before stay, and it is tried again"
"""The published releases cannot be read, or contradict what was published before: the problem."""
RELEASE_EXCLUDED = "release excluded: %s: %s; run edge-fleet verify"
"""A published release does not verify, so rollouts cannot use it: the release and the problem."""
ROLE_EXCLUDED = (
    "role excluded: %s is not signed by its keys, or is not the version that the snapshot lists, "
    "so its releases are left out; run edge-fleet verify"
)
"""All releases of an owner's role are left out: the role."""
ASSIGNMENT_NOT_ADOPTED = "assignment not adopted: %s: %s; the device gets version 1 instead; run edge-fleet verify"
"""An assignment that was made by hand before the device was enrolled is not valid: its file and the problem."""

# ---- alerts, OTLP and wake hints -------------------------------------------------------------------------------------
ALERT_CHANGED = "alert changed: %s is %s: %s"
"""An alert became pending, opened or closed: rule, state and summary."""
ALERTS_NOT_OPENED = "alerts not opened: %d, because too many are open, in all or of one device"
"""More alerts than before are not opened because of a limit: their number."""
ALERT_DELIVERY_FAILED = "alert delivery failed: %s; next attempt in %.0f s"
"""The webhook did not accept an alert, which is sent again: the problem and the pause."""
ALERT_DROPPED = "alert dropped: the webhook does not get it: %s: %s"
"""An alert is not sent any more: the reason and the alert's summary."""
WEBHOOK_DISABLED = (
    "webhook disabled: it answered 410 (gone), so it gets no alerts; correct [alerts] url and restart the controller"
)
"""The webhook answered that it is gone; nothing is sent to it until the controller restarts."""
ROLE_EXPIRY_NOT_CHECKED = "role expiry not checked: %s; the next check is in an hour"
"""The signed roles cannot be read, so alerts `repository` do not open or close: the problem."""
OTLP_ITEMS_DROPPED = "OTLP items dropped: %d: %s"
"""The OTLP endpoint refused items, or was not reached in all attempts: their number and the problem."""
BROKER_CONNECTED = "broker connected: %s; devices get wake hints"
"""The broker of wake hints accepted the controller: its host."""
BROKER_CONNECTION_REFUSED = "broker connection refused: %s: %s; correct [wake]"
"""The broker of wake hints refused the controller, which tries again: its host and its answer."""
BROKER_CONNECTION_LOST = "broker connection lost: %s: %s; devices poll periodically until it is back"
"""The connection to the broker of wake hints ended: its host and the reason."""
