"""Results of routes: their settings and contents."""
