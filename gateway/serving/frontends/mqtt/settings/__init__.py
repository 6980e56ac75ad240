"""Settings of `[mqtt]`, checked when they are built, and what they are written in: paths, templates, topic filters."""
