"""TLS of the port: its own certificate, and client certificates of the device CA where clients have one."""

from __future__ import annotations

import os
import ssl

from gateway.domain.errors import ConfigurationError


def server_context(certificate_pem: bytes, key_pem: bytes, client_ca_pem: bytes) -> ssl.SSLContext:
    """TLS 1.2 and later. Who enrols and who operates comes without a certificate; one that is not of the device CA, or
    is over, ends the handshake. Raises ConfigurationError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION  # which costs the server more than the client
    context.set_alpn_protocols(["http/1.1"])
    load_chain(context, certificate_pem, key_pem)
    try:
        context.load_verify_locations(cadata=client_ca_pem.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        raise ConfigurationError(f"the device CA's certificate cannot be used ({error})", table="authority") from None
    context.verify_mode = ssl.CERT_OPTIONAL
    return context


def load_chain(context: ssl.SSLContext, certificate_pem: bytes, key_pem: bytes) -> None:
    """Show this certificate (leaf first) from now on; also on a context in use. Raises ConfigurationError.

    OpenSSL's chain loader wants a file: an anonymous one in memory, so that the key touches no disk.
    """
    descriptor = os.memfd_create("tls", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(key_pem.rstrip() + b"\n" + certificate_pem)
        # The empty password makes an encrypted key an error; without it OpenSSL would ask on the terminal.
        context.load_cert_chain(f"/proc/self/fd/{descriptor}", password="")
    except (ssl.SSLError, ValueError) as error:
        problem = f"cannot be used ({error}); they must be PEM, belong together, and the key must not be encrypted"
        raise ConfigurationError(problem, table="listen", key="certificate, key") from None
    finally:
        os.close(descriptor)
