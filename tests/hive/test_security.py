"""Security settings from hive-site.xml, and connections to metastores with TLS and with passwords."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from ingestd.errors import ConfigError, IngestdError, LoginFailed, MetastoreUnavailable
from ingestd.hive.client import Metastore
from ingestd.hive.security import Kerberos, Plain, Protection, Security, Tls
from tests.support.certificates import make, over_tls
from tests.support.kerberos import NAME, Realm, secured
from tests.support.metastore import Home, Process, free_port, metastore
from tests.support.patience import LIMIT
from tests.support.users import User, needs_root

PASSWORD = "secret-9"
SERVER = f"hive/_HOST@{NAME}"
SASL = {"hive.metastore.sasl.enabled": "true", "hive.metastore.kerberos.principal": SERVER}
BY_PASSWORD = {
    "metastore.authentication": "CONFIG",
    "metastore.authentication.config.username": "ingestd",
    "metastore.authentication.config.password": PASSWORD,
    # With set_ugi enabled the metastore terminates at startup.
    "metastore.execute.setugi": "false",
}


def test_from_hive_conf_when_no_security_is_set_then_there_is_no_login() -> None:
    assert Security.from_hive_conf({}) == Security()
    given = Security.from_hive_conf({"hive.metastore.sasl.enabled": "false"}, user="x", password="y")
    assert given == Security(unsecured_user="x")
    assert given.user == "x"


@pytest.mark.parametrize(
    ("given", "protections"),
    [
        ("", set(Protection)),
        ("authentication", {Protection.AUTH}),
        ("Integrity , privacy", {Protection.INTEGRITY, Protection.CONFIDENTIALITY}),
    ],
)
def test_from_hive_conf_when_sasl_is_enabled_then_uses_kerberos(given: str, protections: set[Protection]) -> None:
    found = Security.from_hive_conf(SASL | {"hadoop.rpc.protection": given}, user="me", keytab=Path("/k"))
    assert found == Security(Kerberos(SERVER, "me", Path("/k"), frozenset(protections)))


def test_from_hive_conf_when_a_property_is_set_under_both_names_then_uses_the_newer_name() -> None:
    found = Security.from_hive_conf(SASL | {"metastore.kerberos.principal": "hms/a.b@R"})
    assert found == Security(Kerberos("hms/a.b@R"))
    assert Security.from_hive_conf(SASL | {"metastore.sasl.enabled": "false"}) == Security()


def test_from_hive_conf_when_the_client_auth_mode_is_set_then_uses_it() -> None:
    mode = "hive.metastore.client.auth.mode"
    assert Security.from_hive_conf(SASL | {mode: "NOSASL"}).login == Kerberos(SERVER)
    without = {key: value for key, value in SASL.items() if "sasl" not in key}
    assert Security.from_hive_conf(without | {mode: "KERBEROS"}).login == Kerberos(SERVER)
    plain = SASL | {mode: "plain", "hive.metastore.client.plain.username": "me"}
    assert Security.from_hive_conf(plain, password=PASSWORD).login == Plain("me", PASSWORD)


@pytest.mark.parametrize(
    ("conf", "where"),
    [
        ({"metastore.client.auth.mode": "JWT"}, "metastore.client.auth.mode"),
        ({"metastore.client.auth.mode": "LADP"}, "metastore.client.auth.mode"),
        ({"metastore.client.auth.mode": "PLAIN"}, "metastore.plain.username"),
        ({"metastore.client.auth.mode": "PLAIN", "metastore.client.plain.username": "me"}, "metastore.plain.password"),
        ({"metastore.sasl.enabled": "true"}, "metastore.kerberos.principal"),
        ({"hive.metastore.kerberos.principal": SERVER}, "hive.metastore.sasl.enabled"),
        (SASL | {"hive.metastore.kerberos.principal": "hive@R"}, "metastore.kerberos.principal"),
        (SASL | {"hadoop.rpc.protection": "private"}, "hadoop.rpc.protection"),
        ({"metastore.client.thrift.transport.mode": "http"}, "metastore.client.thrift.transport.mode"),
        ({"hive.metastore.thrift.framed.transport.enabled": "true"}, "metastore.thrift.framed.transport.enabled"),
        ({"hive.metastore.use.SSL": "true", "metastore.truststore.path": "/x/t.jks"}, "metastore.truststore.path"),
        ({"hive.metastore.use.SSL": "true", "metastore.truststore.path": "/x/t.pem"}, "/x/t.pem"),
    ],
)
def test_from_hive_conf_when_a_property_is_not_supported_then_raises_config_error(
    conf: dict[str, str], where: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        Security.from_hive_conf(conf)
    assert caught.value.where == where


def test_from_hive_conf_when_tls_is_enabled_then_uses_the_trust_store_or_the_ca_file(tmp_path: Path) -> None:
    tls = {"hive.metastore.use.SSL": "true", "hive.metastore.truststore.path": "/x/t.jks"}
    assert Security.from_hive_conf(tls, ca_file=Path("/ca.pem")).tls == Tls(Path("/ca.pem"))
    assert Security.from_hive_conf({"hive.metastore.use.SSL": "TRUE"}).tls == Tls()
    pem = tmp_path / "trust"
    pem.write_text("-----BEGIN CERTIFICATE-----")
    assert Security.from_hive_conf(tls | {"hive.metastore.truststore.path": str(pem)}).tls == Tls(pem)
    # With TLS, Hive's server reduces the protection to auth, whatever hadoop.rpc.protection is.
    both = SASL | tls | {"hadoop.rpc.protection": "privacy"}
    login = Security.from_hive_conf(both, ca_file=pem).login
    assert isinstance(login, Kerberos)
    assert Protection.AUTH in login.protection


def test_principal_when_it_contains_host_then_replaces_it_with_the_lower_case_host() -> None:
    assert Kerberos("hive/_HOST@R").principal_at("Meta.Example.COM") == "hive/meta.example.com@R"
    assert Kerberos("hive/Fixed@R").principal_at("other") == "hive/Fixed@R"
    assert Kerberos("hive/_HOST").principal_at("h") == "hive/h"


def test_values_when_they_contradict_each_other_then_raises_config_error() -> None:
    with pytest.raises(ConfigError, match=r"metastore\.kerberos\.user"):
        Kerberos(SERVER, keytab=Path("/k"))
    with pytest.raises(ConfigError, match="NUL"):
        Plain("a\0b", PASSWORD)
    with pytest.raises(ConfigError, match="protection"):
        Kerberos(SERVER, protection=frozenset())


def test_repr_when_a_password_is_set_then_does_not_contain_it() -> None:
    assert PASSWORD not in repr(Security(Plain("ingestd", PASSWORD)))


@pytest.fixture(scope="module")
def home(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home(tmp_path_factory.mktemp("security"))


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("certificates"))


def _assert_works(uri: str, security: Security) -> None:
    with closing(Metastore(uri, timeout_seconds=LIMIT, security=security)) as client:
        assert client.call("get_all_databases") == ["default"]
        assert client.call("partition_name_to_vals", "p=" + "x" * 500_000) == ["x" * 500_000]


def _refusal(uri: str, security: Security, kind: type[IngestdError]) -> IngestdError:
    with closing(Metastore(uri, timeout_seconds=LIMIT, security=security)) as client, pytest.raises(kind) as caught:
        client.call("get_all_databases")
    assert type(caught.value) is kind
    assert PASSWORD not in repr(caught.value) + str(caught.value)
    return caught.value


def _numeric_address(server: Process) -> str:
    return server.uri.replace("localhost", "127.0.0.1")


def test_connect_when_the_metastore_has_no_security_then_error_names_the_section_to_remove(home: Home) -> None:
    with metastore(home, "open", {}) as server:
        _assert_works(server.uri, Security())
        plain = Plain("ingestd", PASSWORD)
        assert "remove metastore.plain" in _refusal(server.uri, Security(plain), ConfigError).hint
        assert "remove metastore.tls" in _refusal(server.uri, Security(tls=Tls()), ConfigError).hint
        assert "remove metastore.tls" in _refusal(server.uri, Security(plain, Tls()), ConfigError).hint
        server.pause()
        for security in (Security(), Security(plain), Security(tls=Tls())):
            _times_out(server, security)


def _times_out(server: Process, security: Security) -> None:
    with (
        closing(Metastore(server.uri, timeout_seconds=0.3, security=security)) as client,
        pytest.raises(MetastoreUnavailable),
    ):
        client.call("get_all_databases")


def test_connect_when_tls_is_used_then_verifies_ca_and_host_name(home: Home, certificates: Path) -> None:
    ca = certificates / "ca.pem"
    with metastore(home, "tls", over_tls(certificates)) as server:
        _assert_works(server.uri, Security(tls=Tls(ca)))
        for wrong in (certificates / "other.pem", None):
            error = _refusal(server.uri, Security(tls=Tls(wrong)), ConfigError)
            assert "certificate was rejected" in error.what
            assert "ca_file" in error.hint
        other_host = _numeric_address(server)
        assert "127.0.0.1" in _refusal(other_host, Security(tls=Tls(ca)), ConfigError).what
        _assert_works(other_host, Security(tls=Tls(ca, verify_hostname=False)))
        _refusal(other_host, Security(tls=Tls(certificates / "other.pem", verify_hostname=False)), ConfigError)

        missing = certificates / "none.pem"
        assert str(missing) in _refusal(server.uri, Security(tls=Tls(missing)), ConfigError).where
        assert "PEM" in _refusal(server.uri, Security(tls=Tls(certificates / "server.p12")), ConfigError).what
        assert "set metastore.tls" in _refusal(server.uri, Security(), ConfigError).hint
        plain = Security(Plain("ingestd", PASSWORD), Tls(ca))
        assert "remove metastore.plain" in _refusal(server.uri, plain, ConfigError).hint


def test_connect_when_a_password_is_required_then_only_the_correct_one_is_accepted(home: Home) -> None:
    with metastore(home, "password", BY_PASSWORD) as server:
        _assert_works(server.uri, Security(Plain("ingestd", PASSWORD)))
        for user, password in (("ingestd", "other"), ("other", PASSWORD), ("ingestd", "größer")):
            error = _refusal(server.uri, Security(Plain(user, password)), LoginFailed)
            assert "metastore.plain.password" in error.hint
            assert ("ASCII" in error.hint) is (not password.isascii())
        assert "set metastore.kerberos or metastore.plain" in _refusal(server.uri, Security(), ConfigError).hint
        # An address that is unavailable now may accept later, so the rejection is not permanent.
        unavailable = f"{server.uri},thrift://localhost:{free_port()}"
        error = _refusal(unavailable, Security(Plain("ingestd", "other")), MetastoreUnavailable)
        assert "rejected the login" in error.where


def test_connect_when_a_password_and_tls_are_required_then_both_are_checked(home: Home, certificates: Path) -> None:
    tls = Tls(certificates / "ca.pem")
    with metastore(home, "password-tls", BY_PASSWORD | over_tls(certificates)) as server:
        _assert_works(server.uri, Security(Plain("ingestd", PASSWORD), tls))
        _refusal(server.uri, Security(Plain("ingestd", "other"), tls), LoginFailed)
        _refusal(_numeric_address(server), Security(Plain("ingestd", PASSWORD), tls), ConfigError)
        assert "set metastore.tls" in _refusal(server.uri, Security(Plain("ingestd", PASSWORD)), ConfigError).hint
        assert "set metastore.kerberos or metastore.plain" in _refusal(server.uri, Security(tls=tls), ConfigError).hint


def test_connect_when_kerberos_and_tls_are_used_then_only_auth_is_offered(
    home: Home, certificates: Path, kdc: Realm
) -> None:
    tls, keytab = Tls(certificates / "ca.pem"), kdc.keytab("ingestd", "ingestd")
    properties, jvm = secured(kdc)
    with metastore(home, "kerberos-tls", properties | over_tls(certificates), jvm) as server:
        _assert_works(server.uri, Security(Kerberos(SERVER, "ingestd", keytab), tls))
        secret = Kerberos(SERVER, "ingestd", keytab, frozenset({Protection.CONFIDENTIALITY}))
        error = _refusal(server.uri, Security(secret, tls), ConfigError)
        assert "ingestd allows auth-conf, but the metastore offers auth" in error.what
        _refusal(server.uri, Security(Kerberos(SERVER), tls), LoginFailed)


@needs_root
def test_user_when_the_process_has_no_name_then_the_error_says_how_to_give_it_one() -> None:
    program = "from ingestd.hive.client import Metastore; print(Metastore('thrift://127.0.0.1:1').user)"
    command = [*User(123456, 123456).command(0o022), sys.executable, "-c", program]
    names = ("LOGNAME", "USER", "LNAME", "USERNAME")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    unnamed = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, check=False)
    assert "ConfigError: " in unnamed.stderr
    assert "the user id 123456 of this process has no name" in unnamed.stderr
    named = subprocess.run(
        command, env=environment | {"LOGNAME": "ann"}, cwd="/", capture_output=True, text=True, check=False
    )
    assert named.stdout == "ann\n", named.stderr
