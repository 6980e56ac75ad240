"""HTTP/1.1 for frontends: listeners, bounded connections and bodies, the door. It knows no protocol above HTTP."""
