"""The TLS context of a listener, from PEM contents."""

from __future__ import annotations

import os
import ssl

from gateway.domain.errors import ConfigurationError


def listener_context(protocol: str) -> ssl.SSLContext:
    """TLS 1.2 and later. `protocol` is what is agreed on by ALPN (RFC 7301): "h2" or "http/1.1"."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION  # which costs the server more than the client
    context.set_alpn_protocols([protocol])
    return context


def load_chain(context: ssl.SSLContext, certificate_pem: bytes, key_pem: bytes, *, table: str, key: str) -> None:
    """Show this certificate (leaf first) from now on; also on a context in use, which keeps what it has where the new
    pair cannot be used. ConfigurationError names `key` of `table`.

    OpenSSL's chain loader wants a file: an anonymous one in memory, so that the key touches no disk.
    """
    descriptor = os.memfd_create("tls", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(key_pem.rstrip() + b"\n" + certificate_pem)
        # The empty password makes an encrypted key an error; without it OpenSSL would ask on the terminal.
        # The first try is not on a context in use: a key that does not fit would take away the one that is there.
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
