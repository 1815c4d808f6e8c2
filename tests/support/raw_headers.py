"""Produces records whose header names are any bytes with the functions of librdkafka: the Python client cannot.

Source of the constants: `rd_kafka_vtype_t` in rdkafka.h.
"""

from __future__ import annotations

import ctypes

from confluent_kafka import cimpl

_PRODUCER = 0
_END, _TOPIC, _PARTITION, _VALUE, _FLAGS, _HEADERS = 0, 1, 3, 4, 7, 10
_COPY_VALUE = 2
_FLUSH_MS = 60_000


def produce_with_header(bootstrap_servers: str, topic: str, partition: int, value: bytes, name: bytes) -> None:
    """Produce one record with one header, and wait until Kafka has stored it."""
    library = ctypes.CDLL(cimpl.__file__)
    error = ctypes.create_string_buffer(512)
    for function in (library.rd_kafka_conf_new, library.rd_kafka_new, library.rd_kafka_headers_new):
        function.restype = ctypes.c_void_p
    settings = ctypes.c_void_p(library.rd_kafka_conf_new())
    servers = ctypes.c_char_p(bootstrap_servers.encode())
    assert library.rd_kafka_conf_set(settings, b"bootstrap.servers", servers, error, ctypes.c_size_t(512)) == 0
    producer = ctypes.c_void_p(library.rd_kafka_new(_PRODUCER, settings, error, ctypes.c_size_t(512)))
    assert producer, error.value
    headers = ctypes.c_void_p(library.rd_kafka_headers_new(ctypes.c_size_t(1)))
    length = ctypes.c_ssize_t(len(name))
    assert library.rd_kafka_header_add(headers, name, length, b"1", ctypes.c_ssize_t(1)) == 0
    # fmt: off
    produced = library.rd_kafka_producev(
        producer,
        _TOPIC, ctypes.c_char_p(topic.encode()),
        _PARTITION, ctypes.c_int32(partition),
        _VALUE, ctypes.c_char_p(value), ctypes.c_size_t(len(value)),
        _FLAGS, _COPY_VALUE,
        _HEADERS, headers,
        _END,
    )
    # fmt: on
    assert produced == 0
    assert library.rd_kafka_flush(producer, _FLUSH_MS) == 0
    library.rd_kafka_destroy(producer)
