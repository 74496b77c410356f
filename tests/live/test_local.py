"""``local:`` and ``auto:``, beside a real server: the same model, the same vectors."""

from __future__ import annotations

import itertools
import logging
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from clip_client import ClientConfig, ClipClient, ClipError, ModelNotReady, SyncClipClient
from clip_client.cli.main import main
from preprocess_ensemble.imaging import preprocessor
from preprocess_ensemble.imaging.decode import decode_into
from preprocess_ensemble.imaging.time_budget import DecodeTimeBudget
from preprocess_ensemble.testing.server import free_port

if TYPE_CHECKING:
    from pathlib import Path

    from preprocess_ensemble.testing.server import Server


def files_in(photos: Path) -> list[Path]:
    return sorted(photos.iterdir())


def said(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """What this package logged; a library may have a remark about what an earlier test left to it."""
    return [record for record in caplog.records if record.name.startswith(("clip_client", "preprocess_ensemble"))]


async def test_vectors_are_those_of_the_server_bit_by_bit(photos: Path, server: Server) -> None:
    # One image a request on both sides: ONNX Runtime may add up in another order in a batch of another size.
    async with ClipClient(server.grpc_url) as remote, ClipClient(f"local:{server.repository}") as local:
        for path in files_in(photos):
            here, there = await local.embed(path), await remote.embed(path)
            np.testing.assert_array_equal(here.vectors, there.vectors, err_msg=path.name)
            assert here.vector_id == there.vector_id
        together = (await local.embed(files_in(photos))).vectors
        cosines = (together * (await remote.embed(files_in(photos))).vectors).sum(axis=1)
    assert cosines.min() >= 0.999999


async def test_bad_images_have_the_servers_codes_and_sentences(photos: Path, server: Server) -> None:
    good = files_in(photos)[0].read_bytes()
    images = [b"no image", good, b"", good[:500]]
    async with ClipClient(server.grpc_url) as remote, ClipClient(f"local:{server.repository}") as local:
        here, there = await local.embed(images), await remote.embed(images)
    assert [(index, error.code, error.message) for index, error in here.errors.items()] == [
        (index, error.code, error.message) for index, error in there.errors.items()
    ]
    assert set(here.errors) == {0, 2, 3}
    assert (np.isnan(here.vectors).all(axis=1) == [True, False, True, True]).all()


async def test_an_internal_error_fails_its_own_image_only(
    photos: Path, server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def decode_with_a_defect(file: bytes, *arguments: Any) -> bool:
        if file == b"defect":
            raise RuntimeError("/secret/path")
        return decode_into(file, *arguments)

    monkeypatch.setattr(preprocessor, "decode_into", decode_with_a_defect)
    good = files_in(photos)[0]
    async with ClipClient(f"local:{server.repository}") as clip:
        batch = await clip.embed([good, b"defect", good])
    ((index, error),) = batch.errors.items()
    assert (index, error.code) == (1, "INTERNAL")
    assert "secret" not in error.message
    assert (np.isnan(batch.vectors).all(axis=1) == [False, True, False]).all()
    (record,) = said(caplog)
    assert (record.name, record.levelno) == ("clip_client", logging.ERROR)
    assert "RuntimeError: /secret/path" in record.getMessage()


async def test_a_request_has_the_servers_time_to_decode(
    photos: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    readings = itertools.count(step=6.0)  # seconds that each image seems to take, of 10
    monkeypatch.setattr(preprocessor, "DecodeTimeBudget", partial(DecodeTimeBudget, clock=lambda: next(readings)))
    monkeypatch.setattr("preprocess_ensemble.imaging.time_budget._ALWAYS_PIXELS", 1)
    config = ClientConfig(urls=(f"local:{server.repository}",), local_threads=1, transfer="original")
    async with ClipClient(config=config) as clip:
        batch = await clip.embed(3 * [files_in(photos)[0].read_bytes()])
        assert {index: error.code for index, error in batch.errors.items()} == {2: "LIMIT"}
        assert "took more than 10 s of processor time" in batch.errors[2].message
        assert not (await clip.embed(files_in(photos)[0])).errors, "each request has its own"


async def test_one_thread_gives_the_same_vectors(photos: Path, server: Server) -> None:
    photo = files_in(photos)[0]
    url = f"local:{server.repository}"
    async with ClipClient(url) as many, ClipClient(config=ClientConfig(urls=(url,), local_threads=1)) as one:
        np.testing.assert_allclose((await one.embed(photo)).vectors, (await many.embed(photo)).vectors, atol=1e-6)


async def test_health_and_stats_say_where_the_model_is(server: Server) -> None:
    url = f"local:{server.repository}"
    async with ClipClient(url) as clip:
        report = await clip.health()
        model = await clip.model()
        assert report.ok, report.failed
        assert {step.server for step in report.steps} == {url}
        assert [one.url for one in clip.stats().servers] == [url]
        assert url in repr(clip)
        assert clip.is_local
        assert report.model_id == model.id


async def test_auto_is_the_server_where_one_answers(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    async with ClipClient(f"auto:{server.grpc_url}") as clip:
        await clip.model()
        assert not clip.is_local
        assert [one.url for one in clip.stats().servers] == [f"grpc://{server.grpc_url}"]
        assert f"<ClipClient grpc://{server.grpc_url} " in repr(clip)
    assert not said(caplog)


async def test_auto_is_this_process_where_none_does_and_says_so_once(
    server: Server, photos: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLIP_MODEL", str(server.repository))
    silent = f"127.0.0.1:{free_port()}"
    async with ClipClient(f"auto:{silent}") as clip:
        report = await clip.health()
        await clip.embed(files_in(photos)[:2])
        assert clip.is_local
        assert f"local:{server.repository}" in repr(clip)
    assert {step.server for step in report.steps} == {f"local:{server.repository}"}
    (record,) = said(caplog)
    assert (record.name, record.levelno) == ("clip_client", logging.WARNING)
    assert record.getMessage() == (
        f"No server answers at grpc://{silent}: images are embedded in this process, with the model in "
        f"{server.repository}."
    )


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    with SyncClipClient(f"local:{tmp_path}") as clip:
        with pytest.raises(ModelNotReady, match=r"clip-export --repository .*local:DIR or CLIP_MODEL"):
            clip.embed(b"x")
        failed = clip.health().failed
    assert failed is not None
    assert failed.name == "models ready"


def test_onnxruntime_that_is_not_there(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with (
        SyncClipClient(f"local:{server.repository}") as clip,
        pytest.raises(ClipError, match=r'pip install "clip-triton\[local\]"'),
    ):
        clip.embed(b"x")


@pytest.mark.parametrize("kind", ["damaged", "missing"])
def test_a_model_file_that_cannot_be_loaded(server: Server, tmp_path: Path, kind: str) -> None:
    directory = tmp_path / "clip_encoder" / "1"
    directory.mkdir(parents=True)
    passport = server.repository / "clip_encoder" / "1" / "model.json"
    (directory / "model.json").write_text(passport.read_text())
    if kind == "damaged":
        (directory / "model.onnx").write_bytes(b"no model")
    with SyncClipClient(f"local:{tmp_path}") as clip, pytest.raises(ModelNotReady, match="export the model again"):
        clip.embed(b"x")


def test_the_command_says_which_embeds(
    server: Server,
    photos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    command = ["embed", str(photos), "--output"]
    port = free_port()
    monkeypatch.setattr("clip_client._endpoint.DEFAULT_URL", f"127.0.0.1:{port}")
    monkeypatch.setenv("CLIP_MODEL", str(tmp_path))
    assert main([*command, str(tmp_path / "none.npz")]) == 1
    said = capfd.readouterr().err
    assert "no server answers" in said
    assert "clip-export" in said
    assert "clip-serve" in said

    monkeypatch.setenv("CLIP_MODEL", str(server.repository))
    assert main([*command, str(tmp_path / "local.npz")]) == 0
    assert "images are embedded in this process" in caplog.text

    monkeypatch.setattr("clip_client._endpoint.DEFAULT_URL", server.grpc_url)
    assert main([*command, str(tmp_path / "remote.npz")]) == 0
    assert f"the server at {server.grpc_url} embeds" in capfd.readouterr().err

    with np.load(tmp_path / "local.npz") as here, np.load(tmp_path / "remote.npz") as there:
        assert str(here["vector_id"]) == str(there["vector_id"])
        np.testing.assert_allclose(here["vectors"], there["vectors"], atol=1e-6)
