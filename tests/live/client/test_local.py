"""``local:``, ``auto:`` and thumbnails beside a real server: the same model, the same vectors, or similar ones."""

import logging
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.fixtures.server import Server, free_port
from clip_client import ClientConfig, ClipClient, ClipError, ModelNotReady, SyncClipClient
from clip_client._encoding import IMAGE_ENCODINGS, TransferName
from clip_client.cli.options.connection import connected
from preprocess_ensemble.contract import ImageStatus
from preprocess_ensemble.imaging import preprocessor
from preprocess_ensemble.imaging.preprocessor import Preprocessed, Preprocessor
from preprocess_ensemble.imaging.transform import PreprocessConfig
from preprocess_ensemble.runtimes import openvino_model, processor
from preprocess_ensemble.runtimes.model import OpenModel
from preprocess_ensemble.runtimes.openvino_model import open_openvino
from tests.fixtures.images import phone_files

ENCODER = Path("clip_encoder", "1", "model.onnx")


def files_in(photos: Path) -> list[Path]:
    return sorted(photos.iterdir())


def said(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Return the log records of this package; a library may log a remark about an earlier test."""
    return [record for record in caplog.records if record.name.startswith(("clip_client", "preprocess_ensemble"))]


def in_process(repository: Path, **settings: Any) -> ClipClient:
    return ClipClient(config=ClientConfig(urls=(f"local:{repository}",), **settings))


async def test_vectors_codes_and_sentences_are_those_of_the_server(photos: Path, server: Server) -> None:
    """Vectors bit by bit, also of photos as phones take them."""
    phones = (phone_files.heic(), phone_files.jxl(), phone_files.JXL_OF_A_JPEG, phone_files.avif_of_10_bits())
    images: list[Any] = [*files_in(photos), *phones]
    good = files_in(photos)[0].read_bytes()
    # One image a request on both sides: ONNX Runtime may add up in another order in a batch of another size.
    async with ClipClient(server.grpc_url) as remote, in_process(server.repository) as local:
        for number, image in enumerate(images):
            here, there = await local.embed(image), await remote.embed(image)
            np.testing.assert_array_equal(here.vectors, there.vectors, err_msg=str(number))
            assert not here.errors
            assert here.vector_id == there.vector_id
        together = (await local.embed(images)).vectors
        cosines = (together * (await remote.embed(images)).vectors).sum(axis=1)
        bad = [b"no image", good, b"", good[:500]]
        here, there = await local.embed(bad), await remote.embed(bad)
    assert cosines.min() >= 0.999999
    assert [(index, error.code, error.message) for index, error in here.errors.items()] == [
        (index, error.code, error.message) for index, error in there.errors.items()
    ]
    assert set(here.errors) == {0, 2, 3}
    assert (np.isnan(here.vectors).all(axis=1) == [True, False, True, True]).all()


class Watched(Preprocessor):
    """Notes what it is given, and fails for one image."""

    settings: ClassVar[list[dict[str, Any]]] = []
    requests: ClassVar[list[int]] = []
    """The images of each request; a request has its own time to decode."""

    def __init__(self, config: PreprocessConfig, **settings: Any) -> None:
        self.settings.append(settings)
        super().__init__(config, **settings)

    def run(self, requests: Sequence[Sequence[bytes]]) -> tuple[NDArray[np.uint8], list[Preprocessed]]:
        pixels, images = super().run(requests)
        (files,) = requests
        self.requests.append(len(files))
        failed = Preprocessed(ImageStatus.INTERNAL, message="An internal error.", log="RuntimeError: /secret/path")
        return pixels, [failed if file == b"defect" else image for file, image in zip(files, images, strict=True)]


async def test_an_internal_error_fails_its_own_image_only_and_a_request_has_the_servers_settings(
    tiny_repository: Path, photos: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preprocessor, "Preprocessor", Watched)
    good = files_in(photos)[0]
    async with in_process(tiny_repository, local_threads=1) as clip, in_process(tiny_repository) as many:
        batch = await clip.embed([good, b"defect", good])
        np.testing.assert_allclose(batch.vectors[0], (await many.embed(good)).vectors[0], atol=1e-6)
    assert Watched.settings == [{"threads": 1}, {"threads": None}]
    assert sum(Watched.requests) == 4
    assert {index: error.code for index, error in batch.errors.items()} == {1: "INTERNAL"}
    assert "secret" not in batch.errors[1].message
    assert (np.isnan(batch.vectors).all(axis=1) == [False, True, False]).all()
    (record,) = said(caplog)
    assert (record.name, record.levelno) == ("clip_client", logging.ERROR)
    assert "RuntimeError: /secret/path" in record.getMessage()


async def test_auto_is_this_process_where_none_does_and_says_so_once(
    tiny_repository: Path, photos: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLIP_REPOSITORY", str(tiny_repository))
    here, silent = f"local:{tiny_repository}", f"127.0.0.1:{free_port()}"
    async with ClipClient(f"auto:{silent}") as clip:
        report = await clip.health()
        await clip.embed(files_in(photos)[:2])
        assert clip.is_local
        assert here in repr(clip)
        assert [one.url for one in clip.stats().servers] == [here]
        assert (report.failed, report.model_id) == (None, (await clip.model()).id)
    assert {step.server for step in report.steps} == {here}
    (record,) = said(caplog)
    assert (record.name, record.levelno) == ("clip_client", logging.WARNING)
    assert record.getMessage() == (
        f"No server answers at grpc://{silent}; is clip-serve or tritonserver running there, or still loading, on that "
        f"gRPC port? Images are embedded in this process, with the model in {tiny_repository}."
    )


async def test_a_command_says_that_it_uses_a_server(server: Server, capfd: pytest.CaptureFixture[str]) -> None:
    async with connected(ClientConfig(urls=(f"auto:{server.grpc_url}",))) as clip:
        assert len(await clip.embed(b"an image")) == 1
    assert "using the server" in capfd.readouterr().err


@pytest.mark.parametrize("transfer", ["thumbnail", "thumbnail-small"])
async def test_thumbnails_are_small_and_near_the_original(photos: Path, server: Server, transfer: TransferName) -> None:
    paths = files_in(photos)
    async with (
        ClipClient(server.grpc_url, transfer="original") as whole,
        ClipClient(server.grpc_url, transfer=transfer) as clip,
    ):
        originals, thumbnails = await whole.embed(paths), await clip.embed(paths)
        sent = clip.stats().bytes_sent
        assert (await clip.health()).ok  # the canary travels as it is, so its vector is exact
    thumbnails.raise_for_errors()
    assert (originals.vectors * thumbnails.vectors).sum(axis=1).min() >= 0.999
    assert sent / len(paths) <= 1.1 * IMAGE_ENCODINGS[transfer].unchanged_up_to
    assert originals.vector_id.endswith("|original")
    assert thumbnails.vector_id.endswith(f"|{IMAGE_ENCODINGS[transfer].id}")


@pytest.mark.parametrize(
    ("damage", "kind", "says"),
    [
        (lambda models, _: shutil.rmtree(models), ModelNotReady, r"clip-export --repository .*DIR or CLIP_REPOSITORY"),
        (lambda models, _: (models / ENCODER).unlink(), ModelNotReady, "export the model again"),
        (lambda models, _: (models / ENCODER).write_bytes(b"no model"), ModelNotReady, "export the model again"),
        (lambda _, patch: patch.setitem(sys.modules, "onnxruntime", None), ClipError, r"pip install '\.\[local\]' in"),
        (lambda _, patch: patch.setenv("CLIP_PRECISION", "fp64"), ClipError, "CLIP_PRECISION must be auto or fp32"),
    ],
    ids=["no model", "no file", "damaged file", "no ONNX Runtime", "unknown precision"],
)
def test_a_model_that_cannot_run_has_a_reason(
    damage: Callable[[Path, pytest.MonkeyPatch], object],
    kind: type[ClipError],
    says: str,
    tiny_repository: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    models = shutil.copytree(tiny_repository, tmp_path / "models")
    damage(models, monkeypatch)
    with SyncClipClient(f"local:{models}") as clip:
        with pytest.raises(kind, match=says):
            clip.embed(b"x")
        failed = clip.health().failed
    assert failed is not None
    assert failed.name == "models ready"


def replace_openvino(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, opens: Callable[..., OpenModel]) -> None:
    """Give the processor bf16, and let ``opens`` take the place of OpenVINO."""
    cpu_info = tmp_path / "cpuinfo"
    cpu_info.write_text("vendor_id\t: AuthenticAMD\nflags\t\t: avx512_bf16\n")
    monkeypatch.setattr(processor, "_CPU_INFO", cpu_info)
    monkeypatch.setattr(openvino_model, "open_openvino", opens)


async def test_a_runtime_that_agrees_with_fp32_embeds_and_is_named(
    photos: Path,
    tiny_repository: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # OpenVINO in fp32, which every processor has, in place of bf16.
    replace_openvino(monkeypatch, tmp_path, lambda file, precision, *, threads: open_openvino(file, "fp32"))
    caplog.set_level(logging.INFO, "clip_client")
    async with in_process(tiny_repository, local_precision="auto") as fast, in_process(tiny_repository) as exact:
        here, there = await fast.embed([*files_in(photos), b"no image"]), await exact.embed(files_in(photos))
        assert (await fast.model()).runtime.startswith("OpenVINO")
        assert (await exact.model()).runtime.startswith("ONNX Runtime"), "CLIP_PRECISION=fp32 in all tests"
        assert (await fast.model()).vector_id == (await exact.model()).vector_id
    assert list(here.errors) == [len(files_in(photos))]
    assert (here.vectors[:-1] * there.vectors).sum(axis=1).min() >= 0.9999
    assert any("runs on OpenVINO" in record.getMessage() for record in said(caplog))


async def test_a_runtime_that_disagrees_is_named_in_a_warning(
    tiny_repository: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def zeros(names: Sequence[str], feed: Mapping[str, NDArray[Any]], /) -> list[NDArray[Any]]:
        return [np.zeros((len(feed["pixels"]), 2), np.int32) for _ in names]

    opened = OpenModel(session=SimpleNamespace(run=zeros), runtime="W", compute_precision="bf16")
    replace_openvino(monkeypatch, tmp_path, lambda *_, **__: opened)
    async with in_process(tiny_repository, local_precision="auto") as clip:
        assert (await clip.model()).runtime.startswith("ONNX Runtime")
    (record,) = said(caplog)
    assert (record.levelname, "bf16: its fingerprint" in record.getMessage()) == ("WARNING", True)
