"""URLs and settings: what is taken, and what is said about the rest."""

from __future__ import annotations

import os
from dataclasses import FrozenInstanceError
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clip_client import ClientConfig, ClipClient, SyncClipClient
from clip_client._endpoint import parse_url


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("localhost", "grpc://localhost:8001"),
        ("localhost:9", "grpc://localhost:9"),
        ("grpc://triton.example.org:8001", "grpc://triton.example.org:8001"),
        ("grpcs://triton.example.org", "grpcs://triton.example.org:8001"),
        ("grpc://host:8001/", "grpc://host:8001"),
        (" host_1:80 ", "grpc://host_1:80"),
        ("[::1]:8001", "grpc://[::1]:8001"),
        ("10.0.0.1:8001", "grpc://10.0.0.1:8001"),
        ("local:", "local:"),
        ("local:/models/clip", "local:/models/clip"),
        ("local:~/models", f"local:{os.path.expanduser('~/models')}"),
        ("local:C:\\models", "local:C:\\models"),
        ("auto:", "auto:grpc://localhost:8001"),
        ("auto:host:9", "auto:grpc://host:9"),
        ("auto:grpcs://host", "auto:grpcs://host:8001"),
        ("local", "grpc://local:8001"),
        ("grpc://local:8001", "grpc://local:8001"),
    ],
)
def test_urls(url: str, expected: str) -> None:
    assert str(parse_url(url)) == expected
    assert parse_url(expected) == parse_url(url)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("ftp://localhost:8000", "scheme 'ftp'"),
        ("localhost:http", "port"),
        ("localhost:0", "port"),
        ("localhost:70000", "port"),
        ("", "not a server address"),
        (":8001", "not a server address"),
        ("host:8001/v2/models", "not a server address"),
        ("two words:8001", "not a server address"),
        ("grpc://host:8001?x=1", "not a server address"),
        ("local:8001", "does not name a host"),
        ("auto:8001", "does not name a host"),
        ("a:1,b:1", "not one server.*ClientConfig"),
        ("auto:a,b", "not one server"),
        ("user:hunter2@a,b", "token="),
        ("http://host:8000", "another port.*write grpc://host:8001$"),
        ("https://host", "write grpcs://host:8001$"),
        ("auto:http://[::1]:8000", r"write grpc://\[::1\]:8001$"),
        ("http://user:hunter2@host", "token="),
        ("grpcs://user:hunter2@host:8001", "token="),
        ("user:hunter2@grpc://host:8001", "token="),
    ],
)
def test_invalid_urls(url: str, says: str) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        parse_url(url)
    assert "hunter2" not in str(caught.value)


@settings(deadline=None, max_examples=200, derandomize=True)
@given(st.text("a0:/@[].%?#-~ é\0", max_size=20), st.sampled_from(["", "grpc://", "auto:", "local:", "http://"]))
def test_any_text_is_an_address_or_a_value_error(text: str, scheme: str) -> None:
    try:
        endpoint = parse_url(scheme + text)
    except ValueError:
        return
    assert parse_url(str(endpoint)) == endpoint


TLS = "write the URLs as grpcs://"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"urls": ()}, "urls"),
        ({"urls": "grpcs://host:1"}, r"urls must be a tuple, .* write urls=\('grpcs://host:1',\)"),
        ({"urls": "grpcs://user:s3cret@host"}, "token="),
        ({"urls": ("local:", "host:1")}, "cannot be combined"),
        ({"urls": ("auto:host:1", "host:1")}, "cannot be combined"),
        ({"model": "a_b"}, "cannot name a model"),
        ({"urls": ("http://a:8000",)}, "'http://a:8000' is an HTTP address.*write grpc://a:8001"),
        *(({"timeout_s": bad}, "timeout_s") for bad in (0, float("nan"), float("inf"), 1e12, True, "1")),
        ({"keepalive_time_s": -1}, "keepalive_time_s"),
        ({"target_latency_s": 0}, "target_latency_s"),
        ({"max_in_flight": 0}, "max_in_flight"),
        ({"max_in_flight": 1.5}, "max_in_flight"),
        ({"max_request_bytes": 0}, "max_request_bytes"),
        ({"max_image_bytes": 0}, "max_image_bytes"),
        ({"local_threads": 0}, "local_threads"),
        ({"local_precision": "fp16"}, "local_precision must be one of auto, fp32, got"),
        ({"transfer": "thumbs"}, "thumbnail, thumbnail-small, original"),
        ({"client_key": b"k"}, "client_certificate"),
        ({"urls": ("grpcs://a",), "client_certificate": b"c"}, "client_key"),
        ({"ca_certificate": b"c"}, TLS),
        ({"server_name": "triton.example.org"}, TLS),
        ({"urls": ("grpcs://a", "grpc://b"), "ca_certificate": b"c"}, TLS),
        ({"token": ""}, "token"),
        ({"token": "zwei\nZeilen"}, "token"),
        *(
            ({"urls": urls, "token": "s3cret"}, "use a grpcs:// URL")
            for urls in (
                ("far.example.org",), ("auto:far.example.org",), ("grpcs://a", "far.example.org"),
                ("127.example.org",), ("127.0.0.1.example.org",), ("localhost.example.org",),
            )
        ),
    ],
)  # fmt: skip
def test_invalid_settings(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        ClientConfig(**arguments)
    assert "s3cret" not in str(caught.value)
    assert "Zeilen" not in str(caught.value)


def test_a_token_may_stay_on_this_host_or_go_by_tls_or_by_permission() -> None:
    for url in ("localhost", "127.0.0.1", "[::1]", "grpcs://far.example.org"):
        assert ClientConfig(urls=(url,), token="s3cret").token == "s3cret"
    assert ClientConfig(urls=("far.example.org",), token="s3cret", allow_token_in_clear=True).token == "s3cret"


def test_config_is_frozen_and_shows_no_secret() -> None:
    secrets = ("token", "client_certificate", "client_key", "ca_certificate")
    values: dict[str, Any] = dict.fromkeys(secrets, "s3cret")
    config = ClientConfig(urls=("grpcs://h",), **values)
    assert "s3cret" not in repr(config) + repr(ClipClient(config=config))
    with pytest.raises(FrozenInstanceError):
        config.timeout_s = 1.0  # type: ignore[misc]


def test_the_environment_counts_only_if_the_code_names_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "localhost:8001" in repr(ClipClient())
    monkeypatch.setenv("CLIP_URL", "grpcs://from-environment:1")
    assert "grpcs://from-environment:1" in repr(ClipClient())
    assert "from-environment" not in repr(ClipClient("explicit:2"))
    assert "from-environment" not in repr(ClipClient(config=ClientConfig(urls=("explicit:2",))))


@pytest.mark.parametrize("client", [ClipClient, SyncClipClient])
def test_settings_in_the_place_of_the_url_are_refused_with_the_right_call(client: Any) -> None:
    with pytest.raises(TypeError, match=r"pass a ClientConfig as config=, as in ClipClient\(config=config\)"):
        client(ClientConfig())


def test_arguments_override_config() -> None:
    config = ClientConfig(urls=("a:1",), timeout_s=5.0)
    assert "grpc://b:2, grpc://c:3" in repr(ClipClient(["b:2", "c:3"], config=config))
    with pytest.raises(ValueError, match="timeout_s"):
        ClipClient(timeout_s=-1.0, config=config)
