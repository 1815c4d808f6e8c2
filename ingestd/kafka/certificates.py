"""Examines the certificates of a TLS connection that failed, because librdkafka does not say what is wrong with them.

Invariant: what cannot be read or reached is no fault, as librdkafka has reported the failure itself.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

_TLS_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class BrokerFault:
    """Why the certificate of a broker is rejected, in the words of OpenSSL."""

    reason: str

    @property
    def hint(self) -> str:
        """What to do."""
        if "expired" in self.reason:
            return "renew the certificate of the broker"
        if "mismatch" in self.reason:
            return "bootstrap.servers and the advertised listeners of the brokers must use names in their certificates"
        return "ssl.ca.location of `kafka` must contain the CA that signed it"


class ClientCertificate(NamedTuple):
    """The end of the validity of a client certificate, and the file or property that contains it."""

    end: datetime
    place: str


def broker_fault(host: str, port: int, settings: Mapping[str, object]) -> BrokerFault | None:
    """Connect with TLS as a client with `settings` does; return why it rejects the certificate of the broker, if so.

    librdkafka reports the same text for every reason.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = settings.get("ssl.endpoint.identification.algorithm") != "none"
    try:
        _load_authorities(context, settings)
        with socket.create_connection((host.strip("[]"), port), _TLS_SECONDS) as plain:
            context.wrap_socket(plain, server_hostname=host.strip("[]")).close()
    except ssl.SSLCertVerificationError as error:
        return BrokerFault(error.verify_message)
    except (OSError, UnicodeError):
        return None
    return None


def _load_authorities(context: ssl.SSLContext, settings: Mapping[str, object]) -> None:
    place, text = settings.get("ssl.ca.location"), settings.get("ssl.ca.pem")
    if isinstance(text, str):
        context.load_verify_locations(cadata=text)
    elif isinstance(place, str) and place != "probe":
        folder = Path(place).is_dir()
        context.load_verify_locations(capath=place if folder else None, cafile=None if folder else place)
    else:
        context.load_default_certs()


def client_certificate(settings: Mapping[str, object]) -> ClientCertificate | None:
    """Return the certificate with which a client with `settings` logs in; None if it has none that can be read."""
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415  # takes 50 ms, and is rarely needed
    from cryptography.hazmat.primitives.serialization import pkcs12  # noqa: PLC0415
    from cryptography.x509 import load_pem_x509_certificate  # noqa: PLC0415

    certificate = None
    try:
        if file := settings.get("ssl.certificate.location"):
            place = f"{file} (ssl.certificate.location)"
            certificate = load_pem_x509_certificate(Path(str(file)).read_bytes())
        elif text := settings.get("ssl.certificate.pem"):
            place = "ssl.certificate.pem"
            certificate = load_pem_x509_certificate(str(text).encode())
        elif file := settings.get("ssl.keystore.location"):
            place = f"{file} (ssl.keystore.location)"
            password = str(settings.get("ssl.keystore.password") or "").encode()
            certificate = pkcs12.load_key_and_certificates(Path(str(file)).read_bytes(), password or None)[1]
    except (OSError, ValueError, UnsupportedAlgorithm):
        return None
    return ClientCertificate(certificate.not_valid_after_utc, place) if certificate else None
