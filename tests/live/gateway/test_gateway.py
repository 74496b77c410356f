"""A gateway in front of a real Triton: the vectors of gRPC, its errors, its limits, and its restarts."""

import asyncio
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from benchmarks.fixtures.server import Server, serving
from clip_client import ClipClient
from tests.fixtures.gateways import data_uri, gateway
from tests.fixtures.images.image_files import png_bomb
from tests.fixtures.packaging.pages import programs


def jpegs(photos: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(photos.glob("*.jpg"))[:4]]


def vectors_of(answer: httpx.Response) -> Any:
    assert answer.status_code == 200, answer.text
    return np.array([one["embedding"] for one in answer.json()["data"]], np.float32)


async def test_without_a_triton_the_gateway_embeds_in_its_own_process(
    server: Server, tiny_repository: Path, photos: Path
) -> None:
    body = {"input": [data_uri(file, "jpeg") for file in jpegs(photos)]}
    found = []
    for triton in (f"local:{tiny_repository}", server.grpc_url):
        async with gateway(triton) as http:
            found.append(vectors_of(await http.post("/v1/embeddings", json=body)))
            assert (await http.get("/health")).status_code == 200
    assert np.allclose(found[0], found[1], atol=1e-5)


async def test_bad_images_are_named_and_harm_no_neighbour(server: Server, photos: Path) -> None:
    good = jpegs(photos)[0]
    images = [good, good[: len(good) // 2], b"no image", png_bomb(), good]
    async with gateway(server.grpc_url) as http:
        results = (await http.post("/embed", files=[("images", ("a.jpg", one)) for one in images])).json()["results"]
        assert [result["status"] for result in results] == [0, 4, 2, 6, 0]
        assert results[0]["embedding"] == results[4]["embedding"] is not None
        answer = await http.post("/v1/embeddings", json={"input": [data_uri(one) for one in images[3:]]})
        # The limit of pixels holds before a pixel is decoded.
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "TOO_LARGE")
        assert answer.json()["error"]["param"] == "input.0"


async def test_a_killed_triton_is_waited_for_or_a_503(tiny_repository: Path, photos: Path) -> None:
    body = {"input": data_uri(jpegs(photos)[0], "jpeg")}
    with serving(tiny_repository, "--canary-interval-s", "0.5") as server:
        patient, hasty = gateway(server.grpc_url, timeout_s=60), gateway(server.grpc_url, timeout_s=1)
        async with patient as waits, hasty as gives_up:
            expected = vectors_of(await waits.post("/v1/embeddings", json=body))
            server.triton.kill()
            waiting = asyncio.create_task(waits.post("/v1/embeddings", json=body))
            refused = await gives_up.post("/v1/embeddings", json=body)
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
            # A restart within --timeout-s fails no request.
            assert np.array_equal(vectors_of(await waiting), expected)
            while (answer := await gives_up.post("/v1/embeddings", json=body)).status_code == 503:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            assert np.array_equal(vectors_of(answer), expected)


async def test_the_model_field_chooses_among_models(two_models: Server, photos: Path) -> None:
    image, texts = jpegs(photos)[0], ["a photo of a cat", "ein Foto von einer Katze", "word " * 100]
    async with ClipClient(two_models.grpc_url, transfer="original") as clip:
        of_clip = np.concatenate([(await clip.embed_text(texts)).vectors, (await clip.embed(image)).vectors])
    async with ClipClient(two_models.grpc_url, model="second") as client:
        of_second = (await client.embed(image)).vectors
    async with gateway(two_models.grpc_url, models=("clip", "second")) as http:

        async def asked(*items: str, **named: str) -> httpx.Response:
            return await http.post("/v1/embeddings", json={"input": items, **named})

        uri = data_uri(image, "jpeg")
        listed = {model["id"]: model["model"] for model in (await http.get("/v1/models")).json()["data"]}
        assert list(listed) == ["clip", "second"]
        for named in ({}, {"model": "clip"}):
            answer = await asked(*texts, uri, **named)
            assert np.array_equal(vectors_of(answer), of_clip)
            assert answer.json()["truncated"] == [2]
        for name in ("second", listed["second"]):
            assert np.all(vectors_of(await asked(uri, model=name)) @ of_second.T > 0.99)
        unknown = await asked(uri, model="third")
        assert all(name in unknown.json()["error"]["message"] for name in listed)
        assert (await asked("a cat", model="second")).json()["error"]["code"] == "no_text_tower"
        assert (await http.get("/health")).status_code == 200


@pytest.mark.long
async def test_the_code_on_the_page_about_moving_here_runs(two_models: Server, photos: Path, tmp_path: Path) -> None:
    for name, photo in (("a.jpg", "astronaut.jpg"), ("b.jpg", "coffee.jpg")):
        shutil.copyfile(photos / photo, tmp_path / name)
    async with gateway(two_models.grpc_url) as http:
        url = str(http.base_url).rstrip("/")
        for _, code, _ in programs("migrate.md", __file__):
            code = code.replace("http://localhost:8080", url).replace("localhost:8001", two_models.grpc_url)
            command = (sys.executable, "-c", code)
            done = await asyncio.to_thread(subprocess.run, command, cwd=tmp_path, capture_output=True, check=False)
            assert done.returncode == 0, f"{code}\n{done.stderr.decode()}"
            assert done.stdout.strip()
