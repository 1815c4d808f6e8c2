"""Finds out why a client gets no answer: a rejected login, or a certificate that one side rejects.

Invariant: a login that is rejected before the client has received any answer fails at once. Later, a login may be
rejected for a minute (four requests that time out): passwords and certificates of the brokers and of ingestd do not
change at the same moment, and a broker may depend on a directory service. librdkafka itself only lets requests time
out, as it continues to try all brokers; it reports the failed connections to `ConnectionLog.report`.
"""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from confluent_kafka import KafkaError

from ingestd.clock import monotonic, now
from ingestd.errors import BrokerUnavailable, IngestdError, LoginFailed, masked
from ingestd.kafka.certificates import broker_fault, client_certificate
from ingestd.kafka.settings import is_login_error, secret_values, time_limit, translate_error

# How long a login that has worked may be rejected before the error is final. A lower `socket.timeout.ms` shortens it.
_GRACE_REQUESTS, _REQUEST_SECONDS = 4, 15.0
# How long a failed connection explains a request without an answer. librdkafka reconnects after 10 s at the latest.
_RECENT_SECONDS = 20.0
_MAX_REPORTED = 16
# The alerts with which a broker rejects the certificate of a client (RFC 8446), by their numbers.
_ALERTS = {
    42: "bad certificate",
    43: "unsupported certificate",
    44: "certificate revoked",
    45: "certificate expired",
    46: "certificate unknown",
    48: "unknown CA",
    49: "access denied",
    116: "certificate required",
}
# Their values are not secret: librdkafka has accepted them, so they are names of protocols.
_ENUMERATED = ("security.protocol", "sasl.mechanism", "sasl.mechanisms")
# librdkafka's text about a connection: protocol, address, name of the broker, reason, and the state that failed.
_TEXT = re.compile(r"(?:\w+://)?(?P<host>[^/ ]+):(?P<port>\d+)/\S+: (?P<reason>.*?)(?: \(after [^)]*\))?$", re.DOTALL)

# The same for an answer that the client rejects. Answers before the state UP come from what is no broker.
_OVERSIZED = re.compile(r"Invalid response size (\d+) .*in state UP\)")


@dataclass(frozen=True, slots=True)
class _Failure:
    """A failed connection that librdkafka reported at `at` (monotonic seconds)."""

    error: KafkaError
    at: float

    @property
    def alert(self) -> int | None:
        """The number of the TLS alert with which the broker rejected the client's certificate, if it did."""
        match = re.search(r"SSL alert number (\d+)", self.error.str())
        number = int(match[1]) if match else None
        return number if number in _ALERTS else None

    @property
    def is_rejected_login(self) -> bool:
        return is_login_error(self.error) or self.alert is not None


class ConnectionLog:
    """The last failed connections of one client with `settings`. Safe for use from any thread.

    Pass `report` to the client as `error_cb`. `where` names the brokers.
    """

    def __init__(self, settings: Mapping[str, object], where: str) -> None:
        self._settings = settings
        self._where = where
        self._grace_seconds = _GRACE_REQUESTS * time_limit(settings, _REQUEST_SECONDS)
        self._lock = threading.Lock()
        self._failures: deque[_Failure] = deque(maxlen=_MAX_REPORTED)
        self._has_answered = False
        # The first and the last of the rejected logins that have followed each other without a long pause.
        self._rejected_since = self._rejected_at = float("-inf")

    def report(self, error: KafkaError) -> None:
        """Note a failed connection."""
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            return
        failure = _Failure(error, monotonic())
        with self._lock:
            self._failures.append(failure)
            if failure.is_rejected_login:
                if failure.at - self._rejected_at > _RECENT_SECONDS:
                    self._rejected_since = failure.at
                self._rejected_at = failure.at

    def answered(self) -> None:
        """Note that a broker has answered a request."""
        self._has_answered = True

    def refusal(self) -> IngestdError | None:
        """Return why brokers refuse the connections of this client, or None if this is not known.

        The result is LoginFailed, or BrokerUnavailable while the login may be rejected, or if this side rejects the
        certificate of the broker. Connects to the broker in the latter case, for a few seconds at most.
        """
        recent = [failure for failure in self._recorded() if monotonic() - failure.at <= _RECENT_SECONDS]
        rejected = next((failure for failure in reversed(recent) if failure.is_rejected_login), None)
        if rejected is not None:
            return self._tolerated(self._login_error(rejected))
        untrusted = next((failure for failure in reversed(recent) if failure.error.code() == KafkaError._SSL), None)
        return self._certificate_error(untrusted) if untrusted is not None else None

    def oversized(self, since: float = float("-inf")) -> int | None:
        """Return the bytes of an answer since `since` (monotonic) that was larger than `receive.message.max.bytes`.

        None if there was no such answer.
        """
        failures = (_OVERSIZED.search(failure.error.str()) for failure in self._recorded() if failure.at >= since)
        return next((int(match[1]) for match in failures if match), None)

    def retriable_refusal(self) -> BrokerUnavailable | None:
        """Return `refusal` as an error that is retried, for clients that do not know whether the login has worked.

        For example, those of tasks: the client of the driver, which has the same properties, decides when to give up.
        """
        error = self.refusal()
        return None if error is None else BrokerUnavailable(error.what, where=error.where, hint=error.hint)

    def last_failure(self) -> IngestdError | None:
        """Return `refusal`, or the last failed connection, if there is one."""
        known = self.refusal()
        failures = self._recorded()
        return known or (self._translated(failures[-1]) if failures else None)

    def _recorded(self) -> list[_Failure]:
        with self._lock:
            return list(self._failures)

    def _tolerated(self, error: IngestdError) -> IngestdError:
        if not self._has_answered or monotonic() - self._rejected_since >= self._grace_seconds:
            return error
        hint = f"{error.hint}; ingestd gives up if it is rejected for {self._grace_seconds:.0f} s"
        return BrokerUnavailable(error.what, where=error.where, hint=hint)

    def _translated(self, failure: _Failure) -> IngestdError:
        """Translate librdkafka's error without the values of properties."""
        error = translate_error(failure.error, self._where)
        secrets = secret_values({key: value for key, value in self._settings.items() if key not in _ENUMERATED})
        match = _TEXT.match(error.what)
        where = f"broker {match['host']}:{match['port']}" if match else error.where
        what = masked(match["reason"] if match else error.what, secrets)
        return type(error)(what, where=where, hint=error.hint)

    def _login_error(self, failure: _Failure) -> IngestdError:
        error, alert = self._translated(failure), failure.alert
        if alert is None:
            return error
        if not any(key.startswith(("ssl.certificate.", "ssl.keystore.")) for key in self._settings):
            what = "the broker requires a client certificate"
            hint = "set ssl.certificate.location and ssl.key.location of `kafka`"
        elif (own := client_certificate(self._settings)) and own.end.timestamp() <= now():
            what = f"the client certificate expired on {own.end:%Y-%m-%d %H:%M:%S} UTC"
            hint = f"renew {own.place}"
        else:
            what = f"the broker rejected the client certificate: {_ALERTS[alert]}"
            hint = "use a valid certificate from a CA in the truststore of the broker"
        return LoginFailed(what, where=error.where, hint=hint)

    def _certificate_error(self, failure: _Failure) -> IngestdError:
        error, match = self._translated(failure), _TEXT.match(failure.error.str())
        fault = broker_fault(match["host"], int(match["port"]), self._settings) if match else None
        if fault is None:
            return error
        what = f"the certificate of the broker was rejected: {fault.reason}"
        return BrokerUnavailable(what, where=error.where, hint=fault.hint)
