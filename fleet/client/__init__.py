"""HTTP client of a controller, for the verbs of `edge-fleet`. It imports no package of the controller."""
