"""A Kafka broker with TLS, SCRAM users, client certificates and ACLs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from tests.support import certificates
from tests.support.kafka import KafkaBroker
from tests.support.metastore import free_port
from tests.support.patience import LIMIT
from tests.support.stack import eventually

_LISTENERS = ("SCRAM", "BRIEF", "MTLS", "EXPIRED")
_SCRAM = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
# Everybody who connects to the plain listener is an administrator.
_PROPERTIES = """
listener.security.protocol.map=LOGIN:SASL_PLAINTEXT,PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SCRAM:SASL_SSL,BRIEF:SASL_SSL,MTLS:SSL,EXPIRED:SSL
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
listener.name.scram.sasl.enabled.mechanisms=SCRAM-SHA-512
listener.name.scram.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.brief.sasl.enabled.mechanisms=SCRAM-SHA-512
listener.name.brief.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.brief.connections.max.reauth.ms=2000
listener.name.mtls.ssl.client.auth=required
"""


class SecuredKafka(KafkaBroker):
    """A broker with the listeners `scram` and `brief` (SASL_SSL), `mtls`, and `expired`, whose certificate has expired.

    `certificates` contains the CA `ca.pem` of all certificates, the unrelated CA `other.pem`, and the certificates of
    clients `client.both`, `old.both` (expired) and `stranger.both` (self-signed). Those of the broker name localhost.
    A login at `brief` is valid for two seconds. librdkafka renews it 0.2 s earlier, and if that is too late on a busy
    machine, the broker closes the connection.
    """

    def __init__(self, folder: Path) -> None:
        self.certificates = folder / "certificates"
        self.certificates.mkdir(parents=True)
        certificates.make(self.certificates)
        certificates.issue(self.certificates, "client", "client")
        certificates.issue(self.certificates, "old", "client", days=0)
        certificates.issue(self.certificates, "expired", "localhost", days=0)
        stranger = [(self.certificates / name).read_text() for name in ("other.key", "other.pem")]
        (self.certificates / "stranger.both").write_text("".join(stranger))
        listeners = {name: f"localhost:{free_port()}" for name in _LISTENERS}
        self.scram, self.brief, self.mtls, self.expired = (listeners[name] for name in _LISTENERS)
        properties = dict(line.split("=", 1) for line in _PROPERTIES.split("\n") if line)
        for name in _LISTENERS:
            store = {
                "keystore.type": "PEM",
                "keystore.location": str(self.certificates / ("expired" if name == "EXPIRED" else "server")) + ".both",
                "truststore.type": "PEM",
                "truststore.location": str(self.certificates / "ca.pem"),
            }
            properties |= {f"listener.name.{name.lower()}.ssl.{key}": value for key, value in store.items()}
        super().__init__(folder / "broker", properties, listeners)

    def set_password(self, user: str, password: str) -> None:
        """Create a SCRAM user, or change its password, and wait until it can log in."""
        self._alter(UserScramCredentialUpsertion(user, _SCRAM, password.encode()))
        eventually(f"the login of {user}", lambda: self._accepts(user, password))

    def remove_user(self, user: str) -> None:
        """Remove a SCRAM user."""
        self._alter(UserScramCredentialDeletion(user, _SCRAM.mechanism))

    def _alter(self, alteration: UserScramCredentialAlteration) -> None:
        for answer in self.admin.alter_user_scram_credentials([alteration]).values():
            answer.result(LIMIT)

    def _accepts(self, user: str, password: str) -> bool:
        try:
            AdminClient(self.login(user, password, log_level=2)).list_topics(timeout=LIMIT)
        except KafkaException:
            return False
        return True

    def allow(self, user: str, resource: str, name: str, *operations: str) -> None:
        """Let a user carry out operations on a `TOPIC` or `GROUP`, or on all those that begin with `PREFIX*`."""
        for operation in operations:
            self._bind(user, resource, name, operation, AclPermissionType.ALLOW)

    def deny(self, user: str, resource: str, name: str, operation: str) -> None:
        """Forbid an operation, which takes precedence over a permission."""
        self._bind(user, resource, name, operation, AclPermissionType.DENY)

    def _bind(self, user: str, resource: str, name: str, operation: str, kind: AclPermissionType) -> None:
        everywhere, pattern = "*", ResourcePatternType.PREFIXED if name.endswith("*") else ResourcePatternType.LITERAL
        binding = AclBinding(
            ResourceType[resource],
            name.rstrip("*"),
            pattern,
            f"User:{user}",
            everywhere,
            AclOperation[operation],
            kind,
        )
        self.add_rules(binding)

    def login(self, user: str, password: str, **properties: Any) -> dict[str, Any]:
        """Return the properties of a client that logs in with SCRAM."""
        return {
            "bootstrap.servers": self.scram,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.certificates / "ca.pem"),
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": user,
            "sasl.password": password,
        } | properties

    def certificate(self, name: str, **properties: Any) -> dict[str, Any]:
        """Return the properties of a client with the certificate `name`; '' means none."""
        own = str(self.certificates / f"{name}.both")
        return {
            "bootstrap.servers": self.mtls,
            "security.protocol": "SSL",
            "ssl.ca.location": str(self.certificates / "ca.pem"),
            **({"ssl.certificate.location": own, "ssl.key.location": own} if name else {}),
        } | properties


@contextmanager
def secured_kafka(folder: Path) -> Iterator[SecuredKafka]:
    """Run a secured broker and stop it at the end of the `with` block."""
    broker = SecuredKafka(folder)
    try:
        broker.start()
        yield broker
    finally:
        broker.stop()
