"""Sends requests to HDFS with hdfs-native.

Invariant: a request ends within the time limit, even if the server is frozen. It may still take effect later: the
request has been sent, and the server executes it when it continues.

The library cannot cancel a request of its synchronous client, so a request that takes too long goes on in its thread
(`TimeLimit`). Requests of its asynchronous client can be cancelled, but hold the GIL while they log in: a KDC that does
not answer stops all threads of the process for a minute, heartbeats included. The destructor of that client deadlocks.
"""

from __future__ import annotations

import ctypes
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from hdfs_native import Client

from ingestd.clock import Deadline, pause
from ingestd.errors import ConfigError, IngestdError, LoginFailed, StorageUnavailable
from ingestd.kerberos import EXPIRED, KDC_HINT, NO_KDC, check_keytab, login_hint, signed
from ingestd.storage import hadoop
from ingestd.storage.contract import AlreadyExists, NoAnswer, NoSpace, NotFound, PermissionDenied, split
from ingestd.storage.options import HdfsOptions, StorageOptions
from ingestd.storage.time_limit import TimeLimit

T = TypeVar("T")
_DEFAULT_FS = "fs.defaultFS"
_DEFAULT_PORT = 8020
_HA = "dfs.ha.namenodes."
_VIEWFS = "fs.viewfs.mounttable"
_ATTEMPTS = "dfs.client.failover.max.attempts"
_PANIC = "pyo3_runtime"  # the module of PanicException, which is not an Exception
# A client whose requests time out is replaced after this time, in case its connection is dead without an error.
_RENEWAL_SECONDS = 600.0
# While so many requests are overdue, further ones fail at once.
_MOST_OVERDUE = 64
_TOKENS = "HADOOP_TOKEN_FILE_LOCATION"
# The variables of the environment from which the library takes the user of a new client.
_USER_VARIABLES = ("HADOOP_USER_NAME", "HADOOP_PROXY_USER", "KRB5CCNAME", "KRB5_CLIENT_KTNAME", _TOKENS)
_NO_MOUNT = "/.ingestd-no-mount"
_JAVA_ERROR = re.compile(r'RPCError\("([\w.$]+)", "((?:[^"\\]|\\[^n])*)')
_LOGIN_ERROR = re.compile(r"GSSAPIError|SASLError|NoSASLMechanism")
# The minor status and the message of a failed login.
_GSS_ERROR = re.compile(r'GSSAPIError\(.*, (\d+), "(.*)"\)', re.DOTALL)
_EXPIRED = ("GSS_S_CREDENTIALS_EXPIRED", "GSS_S_CONTEXT_EXPIRED")
_FILE_KEY, _USER_KEY = "storage.hdfs.keytab", "storage.hdfs.principal"
_SPACE = "free space, or have the quota raised"
_HEALTH = "check that the NameNode is active and that DataNodes are running and have space for whole blocks"
# The library does not report the reason that the NameNode sends before it closes a connection.
_DISCONNECTED = "RPC listener disconnected"
# The library would send the next requests over the same connection until its own thread notices that it is closed.
_CLOSING_SECONDS = 0.2
# The beginning of the text of an error that the library found in a transfer to or from a DataNode.
_TRANSFER = "DataTransferError("
# The library cannot resolve a host name, or does not know the NameNodes of a nameservice.
_UNKNOWN = ("failed to lookup address information", "No NameNode hosts found")
_UNKNOWN_HINT = (
    "if this is the name of a nameservice, set storage.hadoop_conf_dir or HADOOP_CONF_DIR to a directory whose"
    " hdfs-site.xml defines it (dfs.ha.namenodes.NAME, dfs.namenode.rpc-address.NAME.ID); otherwise check the host name"
)
_NO_KMS = "no KMS provider is configured"
_NO_KMS_HINT = "set hadoop.security.key.provider.path in core-site.xml of the client, or in storage.hdfs.properties"
_CLOSED = "check that the NameNode is active; its log says why it closed the connection, such as a user that it rejects"
# The end of the text of an AccessControlException for a path below a file (FSDirectory.resolvePath).
_NO_DIRECTORY = " (is not a directory)"
# The error and the hint for each class of Java exception.
_REFUSALS: dict[str, tuple[type[IngestdError], str]] = {
    "AccessControlException": (PermissionDenied, "grant the user access, or let ingestd log in as another user"),
    "SafeModeException": (StorageUnavailable, "the NameNode leaves safe mode when DataNodes have reported the blocks"),
    "NSQuotaExceededException": (NoSpace, "remove files, or have the quota raised"),
    "DSQuotaExceededException": (NoSpace, _SPACE),
    "QuotaByStorageTypeExceededException": (NoSpace, _SPACE),
    "FileNotFoundException": (NotFound, "check that no other process removes files of the table"),
    "LeaseExpiredException": (NotFound, "another process has removed the file while it was written"),
    "FileAlreadyExistsException": (AlreadyExists, "check which process created it"),
    "PathIsNotEmptyDirectoryException": (AlreadyExists, "check which process created it"),
    "AuthorizationException": (LoginFailed, "check HADOOP_PROXY_USER, and hadoop.proxyuser.* of the NameNode"),
    # An expired, early or repeated ticket, or a key of the NameNode that is older than the ticket.
    "SaslException": (StorageUnavailable, "check the clocks and the keytab of the NameNode, and see its log"),
    "InvalidToken": (LoginFailed, "the delegation token has expired; restart the application that obtained it"),
}


class HdfsClient:
    """Sends requests to one cluster, which `root` names, such as `hdfs://nameservice`. Thread-safe.

    Raises ConfigError for options that contradict each other.
    """

    def __init__(self, root: str, options: StorageOptions) -> None:
        self._root = root
        self._options: HdfsOptions = options.hdfs
        self._timeout = options.timeout
        self.properties = _properties(root, options)
        self._mounts = _mounts(root, self.properties)
        self._namenodes = int(self.properties[_ATTEMPTS]) + 1
        login = [self._options.principal or "", str(self._options.keytab or "")]
        login += [os.environ.get(name, "") for name in _USER_VARIABLES]
        self._key = (root, *login, *(text for pair in sorted(self.properties.items()) for text in pair))

    def mount(self, path: str) -> str:
        """Return the mount point of viewfs that contains a path; "" if there is none."""
        return max((mount for mount in self._mounts if f"{path}/".startswith(f"{mount}/")), key=len, default="")

    def run(self, uri: str, request: Callable[[Client], T]) -> T:
        """Send a request about `uri` and return its answer.

        Raises StorageUnavailable and its subclasses, and LoginFailed if the cluster rejects the credentials.
        """
        with self.errors(uri):
            client = self._connected()
        return self.wait(uri, lambda: request(client))

    def wait(self, uri: str, request: Callable[[], T]) -> T:
        """Send a request that belongs to an open file; see `run`."""
        with self.errors(uri):
            return _limit.run(request, self._timeout)

    @contextmanager
    def errors(self, uri: str) -> Iterator[None]:
        """Translate the exceptions of the library."""
        with _starting:
            first = _first.get(self._key, 0)
        try:
            yield
        except TimeoutError as error:
            # The connection may be dead without an error, as after a crash of the machine or in a network partition.
            self._renew(first)
            raise NoAnswer(f"HDFS has not answered within {self._timeout:g} s", where=uri, hint=_HEALTH) from error
        except (OSError, RuntimeError, NotImplementedError, ValueError) as error:
            if _DISCONNECTED in str(error):
                pause(_CLOSING_SECONDS)
            raise _translated(error, uri, self._options) from error
        except BaseException as error:
            if type(error).__module__ != _PANIC:
                raise
            self._renew(first)
            raise StorageUnavailable(f"hdfs-native has failed: {error}", where=uri, hint=_HEALTH) from error

    def _connected(self) -> Client:
        """Return the client, which connects when it is used and reconnects by itself."""
        with _starting:
            first = _first.get(self._key, 0)
            key = (*self._key, str(first))
            if key not in _clients:
                client = Client(
                    _with_port(self._root, self.properties),
                    _rotated(self.properties, first),
                    os.devnull,  # without a directory, the library adds the files of HADOOP_CONF_DIR
                    kerberos_principal=self._options.principal,
                    kerberos_keytab=None if self._options.keytab is None else str(self._options.keytab),
                )
                _make_immortal(client)
                _clients[key] = client, Deadline.after(_RENEWAL_SECONDS)
            return _clients[key][0]

    def _renew(self, first: int) -> None:
        """Let the next request use another client than the one that asks NameNode `first` first.

        It begins with the next NameNode, because the library waits for one that does not answer and never asks the
        others. If there is only one NameNode, the next request uses a new client, unless the present one is new.
        """
        with _starting:
            if _first.get(self._key, 0) == first:
                _first[self._key] = (first + 1) % self._namenodes
            key = (*self._key, str(first))
            if key in _clients and _clients[key][1].passed:
                del _clients[key]


def _properties(root: str, options: StorageOptions) -> Mapping[str, str]:
    """Return the properties of Hadoop for the library. Raises ConfigError if they do not suffice for `root`."""
    given = {key: str(value) for key, value in options.hdfs.properties.items()}
    properties = {**hadoop.properties(options), **given}
    # Each NameNode is tried once. The retry loop of ingestd does the rest: the library would sleep, for up to 3 min.
    namenodes = {
        key: [name.strip() for name in value.split(",")] for key, value in properties.items() if key.startswith(_HA)
    }
    properties |= {key: ",".join(names) for key, names in namenodes.items()}
    properties[_ATTEMPTS] = str(max(map(len, namenodes.values()), default=1) - 1)
    if options.hdfs.principal:
        properties.setdefault("hadoop.security.authentication", "kerberos")
    scheme, authority, _ = split(root)
    if not authority and not properties.get(_DEFAULT_FS, "").startswith(f"{scheme}://"):
        raise ConfigError(
            f"the location names no cluster, and {_DEFAULT_FS} is not a URI of {scheme}",
            where=root,
            hint="set storage.hadoop_conf_dir to the configuration directory of a Hadoop client",
        )
    if not authority:
        properties[_DEFAULT_FS] = _with_port(split(properties[_DEFAULT_FS]).root, properties)
    if scheme == "viewfs":
        _add_fallback(properties, _links(root, properties))
    return properties


def _with_port(root: str, properties: Mapping[str, str]) -> str:
    """Return the URI of a NameNode with Hadoop's default port, which the library does not know, if it has no port."""
    scheme, authority, _ = split(root)
    has_port = re.search(r":\d+$", authority) is not None
    if scheme != "hdfs" or not authority or has_port or f"{_HA}{authority}" in properties:
        return root
    return f"{root}:{_DEFAULT_PORT}"


def _links(root: str, properties: Mapping[str, str]) -> str:
    """Return the beginning of the properties that contain the links of a mount table of viewfs."""
    name = split(root).authority or split(properties[_DEFAULT_FS]).authority
    return f"{_VIEWFS}.{name}.link"


def _mounts(root: str, properties: Mapping[str, str]) -> tuple[str, ...]:
    """Return the mount points of a mount table of viewfs."""
    if split(root).scheme != "viewfs":
        return ()
    links = f"{_links(root, properties)}."
    return tuple(key.removeprefix(links).rstrip("/") for key in properties if key.startswith(links))


def number_property(properties: Mapping[str, str], name: str, base: int, form: str) -> int | None:
    """Return the value of a property, or None if it is not set. Raises ConfigError for another form."""
    if name not in properties:
        return None
    try:
        return int(properties[name], base)
    except ValueError:
        raise ConfigError(
            f"must be {form}, not {properties[name]}",
            where=name,
            hint=f"change it in the Hadoop configuration, or set storage.hdfs.properties.{name}",
        ) from None


def _rotated(properties: Mapping[str, str], first: int) -> dict[str, str]:
    """Return the properties with the NameNodes of each nameservice in an order that begins with number `first`."""
    rotated = dict(properties)
    for key, value in properties.items():
        if key.startswith(_HA):
            names = value.split(",")
            start = first % len(names)
            rotated[key] = ",".join(names[start:] + names[:start])
    return rotated


def _add_fallback(properties: dict[str, str], prefix: str) -> None:
    """Add a fallback to a mount table without one, which the library requires; no directory exists below it."""
    links = sorted(value for key, value in properties.items() if key.startswith(f"{prefix}."))
    if not links:
        raise ConfigError(
            "the Hadoop configuration has no mount table for this name",
            where=f"{prefix}.*",
            hint="set storage.hadoop_conf_dir to a directory whose core-site.xml contains the mount table",
        )
    properties.setdefault(f"{prefix}Fallback", split(links[0]).root + _NO_MOUNT)


def is_of_datanode(error: StorageUnavailable) -> bool:
    """Return whether a request to a DataNode has failed, or possibly one to a NameNode that cannot be reached.

    That excludes the errors that a NameNode returns, and requests that exceeded their time limit.
    """
    cause, text = error.__cause__, str(error.__cause__)
    if isinstance(cause, OSError):
        return not isinstance(error, NoAnswer | NotFound | AlreadyExists) and _DISCONNECTED not in text
    return isinstance(cause, RuntimeError) and text.startswith(_TRANSFER)


def _translated(error: Exception, uri: str, options: HdfsOptions) -> IngestdError:
    """Return the error for an exception of the library."""
    text = str(error)
    first = text.partition("\n")[0]
    if isinstance(error, FileNotFoundError):
        return NotFound(_reason(first, "the file or directory does not exist"), where=uri)
    if isinstance(error, FileExistsError):
        return AlreadyExists("the file or directory exists already", where=uri, hint="check which process created it")
    if _NO_KMS in first:
        what = "the directory is in an encryption zone, and no key management server (KMS) is configured"
        return ConfigError(what, where=uri, hint=_NO_KMS_HINT)
    if any(words in first for words in _UNKNOWN):
        return StorageUnavailable("the NameNode is not known", where=uri, hint=_UNKNOWN_HINT)
    hint = _CLOSED if _DISCONNECTED in first else _HEALTH
    return _refused(text, uri, options) or StorageUnavailable(first or type(error).__name__, where=uri, hint=hint)


def _refused(text: str, uri: str, options: HdfsOptions) -> IngestdError | None:
    """Return the error for the text of an exception that contains the class of a Java exception."""
    java = _JAVA_ERROR.search(text)
    if java:
        what = java[2].replace('\\"', '"').partition("\\n")[0]
        if what.endswith(_NO_DIRECTORY):
            return NotFound(what, where=uri)
        kind, hint = _REFUSALS.get(java[1].rpartition(".")[2].rpartition("$")[2], (StorageUnavailable, _HEALTH))
        return kind(what or java[1], where=uri, hint=hint)
    return _rejected(text, uri, options) if _LOGIN_ERROR.match(text) else None


def _rejected(text: str, uri: str, options: HdfsOptions) -> IngestdError:
    """Return the error for a failed login. One that ends when the KDC answers again is StorageUnavailable."""
    code, message = _parsed(text)
    what = f"the login to HDFS failed: {message}"
    if code in NO_KDC:
        return StorageUnavailable(what, where=uri, hint=KDC_HINT)
    if options.principal is None or options.keytab is None:
        hint = login_hint(code, _USER_KEY, f"run kinit, or set {_USER_KEY} and {_FILE_KEY}")
        return LoginFailed(what, where=uri, hint=_token_hint(uri) or hint)
    try:
        check_keytab(options.keytab, options.principal, file_key=_FILE_KEY, user_key=_USER_KEY)
    except LoginFailed as error:
        return error
    kinit = f"run kinit -k -t {options.keytab} {options.principal} to reproduce the error"
    if code == EXPIRED:
        # With an expired ticket in its cache, Kerberos does not say why it obtained no new one. Usually no KDC answers.
        what = f"the ticket of {options.principal} for HDFS has expired, and no new one could be obtained"
        return StorageUnavailable(what, where=uri, hint=f"{KDC_HINT}; {kinit}")
    where = f"{_FILE_KEY} {options.keytab}"
    return LoginFailed(f"{options.principal}: {what}", where=where, hint=login_hint(code, _USER_KEY, kinit))


def _token_hint(uri: str) -> str:
    """Return the hint for a login with a ticket although there is a file of delegation tokens; '' without such a file.

    The library uses a token only if its service is the name of the nameservice, or the host and port of the location.
    """
    file = os.environ.get(_TOKENS)
    if not file:
        return ""
    return (
        f"{file} ({_TOKENS}) has no token for {split(uri).authority}, and there is no ticket: a token of a cluster"
        " without nameservice must have been obtained with hadoop.security.token.service.use_ip=false"
    )


def _parsed(text: str) -> tuple[int, str]:
    """Return the code in the error tables of Kerberos, and the message, of an exception of the library."""
    error = _GSS_ERROR.match(text)
    if not error:
        return 0, text
    major, _, minor = error[2].partition(": ")
    if any(status in text for status in _EXPIRED):  # in the middle of the login; then there is no minor status
        return EXPIRED, major
    return signed(int(error[1])), minor or major


def _reason(text: str, otherwise: str) -> str:
    """Return a message, or `otherwise` if it is only a path."""
    return otherwise if not text or text.startswith("/") else text


def _make_immortal(client: Client) -> None:
    """Prevent that the destructor of a client ever runs, even when the interpreter shuts down.

    The destructor holds the GIL while it waits for the library's threads. These may wait for a KDC or for DNS, and do
    not exist in a forked child. Therefore clients are shared and rarely renewed.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(client.inner))


# The clients of this process by the options that determine them and by the number of the NameNode that they ask first,
# and when they may be renewed.
_clients: dict[tuple[str, ...], tuple[Client, Deadline]] = {}
# The number of the NameNode that the client in use asks first, by the same options.
_first: dict[tuple[str, ...], int] = {}
_starting = threading.Lock()
_limit = TimeLimit(_MOST_OVERDUE)


def _forget_clients() -> None:
    """Forget the clients of the parent process, whose threads do not exist in a child."""
    global _starting  # noqa: PLW0603  # another thread may hold the lock during the fork
    _starting = threading.Lock()
    _clients.clear()
    _first.clear()


os.register_at_fork(after_in_child=_forget_clients)
