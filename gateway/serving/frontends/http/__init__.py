"""HTTP/1.1 for frontends: listeners, bounded connections and bodies, admission. Independent of protocols above HTTP."""
