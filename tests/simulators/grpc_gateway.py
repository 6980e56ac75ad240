"""The gRPC frontend on real sockets over simulated inference, and a certificate authority for its TLS."""

from __future__ import annotations

import datetime as dt
import importlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from gateway.domain.access import Address, Security
from gateway.frontends.grpc_v2.service import InferenceService
from gateway.frontends.grpc_v2.settings import GrpcSettings
from gateway.frontends.regions import Regions
from tests.simulators.inference import SimulatedInference

LOOPBACK = Address("127.0.0.1", 0)


SERVERS = {"own": ("server", "GrpcServer"), "grpcio": ("grpcio_server", "GrpcFrontend")}
"""What may speak HTTP/2, by its name in the configuration."""


class Gateway:
    """A running frontend; `target` is its first address as gRPC clients write it."""

    server: ClassVar[str] = "grpcio"

    def __init__(
        self,
        inference: SimulatedInference,
        settings: GrpcSettings,
        security: Security,
        regions: Regions | None = None,
    ) -> None:
        self.inference = inference
        self.service = InferenceService(inference, inference, inference, settings, regions)
        self.frontend = _listener(self.server)(self.service, settings, security)
        self.addresses: list[Address] = []

    @property
    def target(self) -> str:
        return str(self.addresses[0])


@asynccontextmanager
async def serving(
    *,
    settings: GrpcSettings | None = None,
    security: Security | None = None,
    addresses: Sequence[Address] = (LOOPBACK,),
    inference: SimulatedInference | None = None,
    regions: Regions | None = None,
) -> AsyncIterator[Gateway]:
    gateway = Gateway(inference or SimulatedInference(), settings or GrpcSettings(), security or Security(), regions)
    gateway.addresses = await gateway.frontend.start(addresses)
    try:
        yield gateway
    finally:
        await gateway.frontend.stop(0)


def _listener(server: str) -> Any:
    module, name = SERVERS[server]
    return getattr(importlib.import_module(f"gateway.frontends.grpc_v2.{module}"), name)


class Authority:
    """A throw-away certificate authority."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])
        self.certificate = self._sign(self._name, self._key, authority=True)

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def issue(self, common_name: str) -> tuple[bytes, bytes]:
        """Certificate and key as PEM."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)] if common_name else [])
        certificate = self._sign(name, key, authority=False)
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return certificate.public_bytes(serialization.Encoding.PEM), private

    def _sign(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *, authority: bool) -> x509.Certificate:
        now = dt.datetime.now(dt.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(minutes=5))
            .not_valid_after(now + dt.timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        )
        return builder.sign(self._key, hashes.SHA256())
