"""Detection: what the machine has, from /sys, /proc, /dev and /etc under a root. Only `library` executes anything."""
