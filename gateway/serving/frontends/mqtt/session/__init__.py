"""The connection to the broker: its session, unacknowledged publications, and the client's identity."""
