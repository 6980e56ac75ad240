"""TLS context of the agent. This module must stay small: the sleeping parent loads it too."""

from __future__ import annotations

import ssl

from gateway.common.domain.errors import ConfigurationError
from gateway.common.transfer.settings import FetchSettings


def tls_context(settings: FetchSettings) -> ssl.SSLContext:
    """Return a context for TLS 1.2 or newer with host name checks, and the CA and certificate of the settings."""
    for key in ("ca_file", "certificate_file"):
        file = getattr(settings, key)
        try:
            if key == "ca_file":
                context = ssl.create_default_context(cafile=file)
            elif file:
                context.load_cert_chain(file, settings.key_file or None)
        except (OSError, ssl.SSLError) as error:
            problem = f"{file} cannot be used: {error.strerror or error}; name a PEM file that the agent may read"
            raise ConfigurationError(problem, table="fetch", key=key) from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
