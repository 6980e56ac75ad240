"""A device's certificate request (PKCS #10, RFC 2986). Only its key and the proof of possession count."""

from __future__ import annotations

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from fleet.controller.authority.settings import AuthoritySettings
from gateway.common.domain.errors import Fault, RequestError

PublicKey = ec.EllipticCurvePublicKey | rsa.RSAPublicKey
CURVES = (ec.SECP256R1, ec.SECP384R1)
HASHES = (hashes.SHA256, hashes.SHA384, hashes.SHA512)
RSA_BITS = range(2048, 4097)
RSA_EXPONENT = 65537
KEYS = "EC P-256 or P-384, or RSA of 2048 to 4096 bits with exponent 65537"
_BEGIN = b"-----BEGIN CERTIFICATE REQUEST-----"
_END = b"-----END CERTIFICATE REQUEST-----"


def requested_key(request_pem: bytes, settings: AuthoritySettings) -> PublicKey:
    """Return the key of a request. Its subject and extensions are ignored: the controller knows the device.

    Raise RequestError INVALID or TOO_LARGE: not one PEM request, not signed by that key, or a weak key.
    """
    request = _parsed(request_pem, settings.request_limit_bytes)
    key = _strong(request)
    if not isinstance(_hash(request), HASHES):
        raise _refused("its signature must use SHA-256, SHA-384 or SHA-512")
    if not request.is_signature_valid:
        raise _refused("it is not signed by the key it is for")
    return key


def requested_name(request_pem: bytes) -> str:
    """Return the common name of a request, or "": the name that the device would like to have."""
    try:
        names = x509.load_pem_x509_csr(request_pem.strip()).subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    except (ValueError, UnsupportedAlgorithm):
        return ""
    return str(names[0].value) if len(names) == 1 and isinstance(names[0].value, str) else ""


def _parsed(request_pem: bytes, limit_bytes: int) -> x509.CertificateSigningRequest:
    if len(request_pem) > limit_bytes:
        raise RequestError(
            Fault.TOO_LARGE, f"a certificate request has at most {limit_bytes} bytes; ask with a new one"
        )
    text = request_pem.strip()
    if not (text.startswith(_BEGIN) and text.endswith(_END) and text.count(b"-----BEGIN") == 1):
        raise _refused("send one PEM block CERTIFICATE REQUEST and nothing else")
    try:
        return x509.load_pem_x509_csr(text)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise _refused(f"{error!s:.200}") from None


def _strong(request: x509.CertificateSigningRequest) -> PublicKey:
    try:
        key = request.public_key()
    except (ValueError, UnsupportedAlgorithm) as error:
        raise _refused(f"its key cannot be read ({error!s:.200})") from None
    if isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, CURVES):
        return key
    if isinstance(key, rsa.RSAPublicKey) and key.key_size in RSA_BITS and key.public_numbers().e == RSA_EXPONENT:
        return key
    raise _refused(f"its key must be {KEYS}")


def _hash(request: x509.CertificateSigningRequest) -> hashes.HashAlgorithm | None:
    try:
        return request.signature_hash_algorithm
    except UnsupportedAlgorithm as error:
        raise _refused(f"{error!s:.200}") from None


def _refused(problem: str) -> RequestError:
    return RequestError(Fault.INVALID, f"the certificate request cannot be signed: {problem}")
