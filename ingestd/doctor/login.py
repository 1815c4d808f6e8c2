"""Checks of the Kerberos login to the metastore: keytab and ticket.

Invariant: without the section `metastore.kerberos` these checks find nothing.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from ingestd.doctor.finding import Check, Verdict, fault, ok, warning
from ingestd.errors import LoginFailed
from ingestd.hive.kerberos import check_login, read_ticket
from ingestd.hive.options import MetastoreOptions

_SHORT_SECONDS = 3_600


def _keytab(options: MetastoreOptions) -> Iterator[Verdict]:
    login = options.kerberos
    if login is None or login.keytab is None:
        return
    check_login(login)
    text = f"{login.keytab} has a key for {login.user}"
    mode = stat.S_IMODE(os.stat(login.keytab).st_mode)
    if mode & (stat.S_IRWXG | stat.S_IRWXO) & ~stat.S_IRGRP:
        yield warning(f"{text}; its mode is {mode:04o}", f"run chmod 0440 {login.keytab}: it is a secret")
    else:
        yield ok(text)


def _ticket(options: MetastoreOptions) -> Iterator[Verdict]:
    login = options.kerberos
    if login is None:
        return
    ticket = read_ticket(login)
    text = f"the ticket of {ticket.owner} expires in {ticket.seconds_left / 60:,.0f} min"
    if login.keytab is not None or ticket.seconds_left > _SHORT_SECONDS:
        yield ok(f"{text}; it is renewed from the keytab" if login.keytab else text)
    elif ticket.seconds_left <= 0:
        yield fault(text, "run kinit, or set metastore.kerberos.keytab", LoginFailed)
    else:
        yield warning(text, "set metastore.kerberos.keytab and user, or renew the ticket, for example with k5start")


CHECKS: tuple[Check[MetastoreOptions], ...] = (Check("login.keytab", _keytab), Check("login.ticket", _ticket))
