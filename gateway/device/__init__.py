"""The agent and the installer: they keep a device in step with its fleet."""
