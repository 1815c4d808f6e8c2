"""The section `registry`: the address of one server, so that a wrong one is an error and not an outage."""

from __future__ import annotations

import pytest

from ingestd.config.document import validate
from ingestd.config.files import Settings
from ingestd.errors import ConfigError
from ingestd.formats.registry import RegistryOptions


def _options(url: str) -> RegistryOptions | None:
    document = {
        "metastore": {"uri": "thrift://localhost:9083"},
        "kafka": {"bootstrap.servers": "localhost:9092"},
        "mappings": [{"name": "a", "topics": ["a"], "table": "web.a", "format": {"type": "avro"}}],
        "registry": {"url": url},
    }
    return validate(Settings(document)).registry


@pytest.mark.parametrize(
    "url",
    [
        "http://r:8081",
        "https://r.example.com/apis/ccompat/v7/",
        "http://[::1]:8081",
        "http://my_host",
        "http://10.0.0.1:1",
        "http://a:65535",
    ],
)
def test_url_when_it_names_a_server_then_is_accepted(url: str) -> None:
    found = _options(url)
    assert found
    assert found.url == url


@pytest.mark.parametrize(
    "url",
    [
        *(
            "http://a:8081,http://b:8081",
            "http://a:port",
            "http://:8081",
            "http://ann:secret@a",
            "a:8081",
            "http://a/?x=1",
        ),
        *("http://a:0", "http://a:65536", "http://[::1]:99999/"),
    ],
)
def test_url_when_it_does_not_name_one_server_then_raises_config_error(url: str) -> None:
    with pytest.raises(ConfigError, match="must be one URL") as caught:
        _options(url)
    assert "secret" not in str(caught.value)
