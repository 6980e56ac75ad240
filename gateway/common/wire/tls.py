"""TLS context of a listener, from PEM contents."""

from __future__ import annotations

import os
import ssl

from gateway.common.domain.errors import ConfigurationError


def listener_context(protocol: str) -> ssl.SSLContext:
    """Return a context for TLS 1.2 and later. `protocol` is what ALPN negotiates (RFC 7301): "h2" or "http/1.1"."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION  # renegotiation costs the server more than the client
    context.set_alpn_protocols([protocol])
    return context


def load_chain(context: ssl.SSLContext, certificate_pem: bytes, key_pem: bytes, *, table: str, key: str) -> None:
    """Use this certificate (leaf first) from now on. Raises ConfigurationError with `key` of `table`.

    It may be called for a context in use, which keeps the old pair if the new one cannot be used. OpenSSL's chain
    loader requires a file: an anonymous one in memory, so that the key is never written to a disk.
    """
    descriptor = os.memfd_create("tls", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(key_pem.rstrip() + b"\n" + certificate_pem)
        # The empty password makes an encrypted key an error; without it OpenSSL would ask on the terminal.
        # The first try is not on a context in use: a key that does not fit would remove the existing one.
        for each in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), context):
            each.load_cert_chain(f"/proc/self/fd/{descriptor}", password="")
    except (ssl.SSLError, ValueError) as error:
        problem = (
            f"certificate and key cannot be used ({error}); they must be PEM, belong together, and the key must not be "
            "encrypted"
        )
        raise ConfigurationError(problem, table=table, key=key) from None
    finally:
        os.close(descriptor)
