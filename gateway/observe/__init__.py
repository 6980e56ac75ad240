"""How the daemon is seen from outside: metrics, logs, and what it tells the service manager."""
