"""Hardware detection, read from /sys, /proc, /dev and /etc under a root. Only `library` executes anything.

Tested on root trees of every family (tests/devices) and live on x86 machines without accelerators; on no board yet.
"""
