"""Texts through the client: their errors, requests of one tower, several models, what ids compare, and ``classify``."""

import asyncio
from typing import Any

import numpy as np
import pytest

from clip_client import ClipClient, DeadlineExceeded, ItemErrors, ModelNotReady, ProtocolMismatch, TextError
from clip_client.testing import FakeTriton, Reply, fake_vector
from tests.fixtures.fakes import LOST, NEVER, InMemoryClient, Stalled, asynchronous, now, scripted
from tests.fixtures.simulated_time import connected, simulated

TEXT_ID = "fake/random:0@00000000|text-clip-bpe/lower-77"
LONG = "word " * 78
LABELS = ["cat", "dog on a beach", "tax return"]
IMAGES = [b"image %d" % number for number in range(5)]


async def test_each_text_has_a_vector_or_an_error(near: ClipClient) -> None:
    texts = ["a dog on the beach", " \n", LONG, "half a \ud83d", "long" * 2**14, "köpek"]
    batch = await near.embed_text(texts)
    assert batch.vector_id == TEXT_ID == (await near.model()).text_vector_id
    assert batch.truncated == (2,)
    assert batch.sources == (None,) * 6
    for index in (0, 2, 5):
        np.testing.assert_array_equal(batch.vectors[index], fake_vector(texts[index].encode()))
    assert {index: error.code for index, error in batch.errors.items()} == {1: "EMPTY", 3: "NOT_UTF8"}
    assert np.isnan(batch.vectors[[1, 3]]).all()
    with pytest.raises(ItemErrors, match="2 texts failed, such as text 1: EMPTY: "):
        batch.raise_for_errors()
    one = await near.embed_text("word " * 2**14)
    with pytest.raises(TextError, match=r"text 0: TOO_LARGE: The text has 81,920 bytes; .*: shorten it\."):
        one.raise_for_errors()
    assert len(await near.embed_text([])) == 0


async def test_a_stream_of_texts_is_in_order_and_names_long_ones(near: ClipClient) -> None:
    texts = [f"text {number}" for number in range(100)]
    texts[70], texts[40] = LONG, ""
    items = [item async for item in near.embed_text_stream(asynchronous(texts), max_in_flight=20)]
    assert [item.index for item in items] == list(range(100))
    assert [item.index for item in items if item.truncated] == [70]
    assert [(item.index, str(item.error)[:15]) for item in items if item.error] == [(40, "text 40: EMPTY:")]
    assert items[3].source == "text 3"


@pytest.mark.parametrize(
    "texts", [b"a text", 5, ["a text", 5], iter(["a text", None])], ids=["bytes", "int", "list", "iterator"]
)
async def test_only_str_is_a_text(near: ClipClient, texts: Any) -> None:
    says = "a text must be a str, got|expected one text or an iterable of texts, got int"
    with pytest.raises(TypeError, match=says):
        await near.embed_text(texts)


async def test_texts_need_a_tower_on_every_server(fake: FakeTriton) -> None:
    without = FakeTriton()
    async with InMemoryClient({"a": fake, "b": without}, ["a", "b"]) as clip:
        assert not (await clip.embed([b"image"] * 64)).errors
        assert (await clip.model()).text is None
        with pytest.raises(ModelNotReady, match=r"has no text tower; export both .* model's own --name, --model"):
            await clip.embed_text("a")
        for work in (anext(clip.embed_text_stream(["a"])), clip.classify([b"a"], ["cat"])):
            with pytest.raises(ModelNotReady, match="no text tower"):
                await work
    assert {request.model for server in (fake, without) for request in server.requests} == {"clip_image"}


@simulated
async def test_images_and_texts_in_turn_share_requests_of_their_own_kind() -> None:
    server = scripted(then=Reply(delay_s=0.1), has_text=True)
    async with connected(server) as clip:
        calls = []
        for number in range(32):  # each a call of its own
            calls += [clip.embed(b"image %d" % number), clip.embed_text(f"text {number}")]
        batches = await asyncio.gather(*calls)
    for number in range(32):
        image, text = batches[2 * number : 2 * number + 2]
        np.testing.assert_array_equal(image.vectors[0], fake_vector(b"image %d" % number))
        np.testing.assert_array_equal(text.vectors[0], fake_vector(b"text %d" % number))
    assert len(server.requests) <= 12  # not one for each
    for request in server.requests:
        kind = request.model.removeprefix("clip_").encode()
        assert all(item.startswith(kind) for item in request.images)


@simulated
async def test_a_failed_request_is_sent_again_and_a_late_text_is_named() -> None:
    async with connected(scripted(LOST, Reply(), NEVER, has_text=True)) as clip:
        first = await clip.embed_text([f"text {number}" for number in range(40)], timeout_s=5)
        assert clip.stats().requests_retried == 1
    late = list(first.errors.values())
    assert {(type(error), error.code) for error in late} == {(TextError, "TIMEOUT")}
    assert "before this text was embedded; use a longer timeout_s" in late[0].message


async def test_vectors_of_another_text_tower_are_refused(fake: FakeTriton, near: ClipClient) -> None:
    fake.script(Reply(fingerprint=fake.fingerprint))
    with pytest.raises(ProtocolMismatch, match="does not serve fake"):
        await near.embed_text("a")


async def test_health_embeds_the_canary_text(fake: FakeTriton, near: ClipClient) -> None:
    report = await near.health()
    assert report.ok
    assert [step.name for step in report.steps][-2:] == ["canary", "text canary"]
    fake.ready_models.discard("clip_text")
    failed = (await near.health()).failed
    assert failed is not None
    assert (failed.name, failed.error) == ("text canary", ModelNotReady)
    assert "no ready model clip_text" in failed.message


async def test_one_of_several_models_is_named() -> None:
    server = FakeTriton(has_text=True, name="siglip")
    server.ready_models |= {"clip_image", "clip_preprocess", "clip_encoder"}
    async with InMemoryClient({"localhost": server}, model="siglip") as clip:
        assert not (await clip.embed(b"a")).errors
        assert not (await clip.embed_text("a")).errors
        assert (await clip.health()).ok
    assert {request.model for request in server.requests} == {"siglip_image", "siglip_text"}


@pytest.mark.parametrize("bias", [None, -10.0], ids=["softmax", "sigmoid"])
async def test_a_label_is_the_mean_of_its_templates(fake: FakeTriton, near: ClipClient, bias: float | None) -> None:
    """tests/live/client compares the probabilities with those of open_clip."""
    fake.logit_scale, fake.logit_bias = 10.0, bias
    found = await near.classify(iter(IMAGES), LABELS, templates=["{}", "a picture of {}"], timeout_s=60)
    logits = np.empty((len(IMAGES), len(LABELS)))
    for column, label in enumerate(LABELS):
        both = fake_vector(label.encode()) + fake_vector(f"a picture of {label}".encode())
        for row, image in enumerate(IMAGES):
            logits[row, column] = 10.0 * fake_vector(image) @ both / np.linalg.norm(both)
    if bias is None:
        expected = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    else:
        expected = 1 / (1 + np.exp(-(logits + bias)))
    assert found.labels == tuple(LABELS)
    assert found.probabilities.dtype == np.float32
    np.testing.assert_allclose(found.probabilities, expected, rtol=1e-5)


@simulated
async def test_the_time_of_a_classification_includes_the_handshake() -> None:
    server = Stalled(late_s=3, has_text=True)
    server.script(NEVER)
    async with InMemoryClient({"localhost": server}) as clip:
        with pytest.raises(DeadlineExceeded):
            await clip.classify([b"a"], ["cat"], templates=["{}"], timeout_s=5)
        assert now() == pytest.approx(5)


@simulated
async def test_a_classification_has_one_time_and_one_model() -> None:
    server = scripted(Reply(delay_s=3), NEVER, Reply(delay_s=2), has_text=True)
    async with connected(server) as clip:
        with pytest.raises(DeadlineExceeded):
            await clip.classify([b"a"], ["cat"], templates=["{}"], timeout_s=5)
        assert now() == pytest.approx(5)
        call = asyncio.create_task(clip.classify([b"a"], ["cat"], templates=["{}"]))
        await asyncio.sleep(1)
        server.model, server.fingerprint = "other", (5, 6)
        with pytest.raises(ProtocolMismatch, match="does not serve"):
            await clip.embed(b"b")
        with pytest.raises(ProtocolMismatch, match="changed their model during the call"):
            await call


async def test_a_label_that_cannot_be_embedded_is_named(near: ClipClient) -> None:
    says = r"^text 1: NOT_UTF8: The label 'half a \\ud83d' cannot be embedded: "
    with pytest.raises(TextError, match=says) as caught:
        await near.classify([b"a"], ["cat", "half a \ud83d", "x" * 2**17])
    assert (caught.value.code, caught.value.index) == ("NOT_UTF8", 1)


async def test_an_image_that_fails_has_no_probabilities(fake: FakeTriton, near: ClipClient) -> None:
    fake.script(Reply(), Reply(row_errors={1: (5, "It contradicts itself.")}))
    found = await near.classify([b"a", b"b"], ["cat"], templates=["{}"])
    assert found.probabilities[0] == pytest.approx([1.0])
    assert np.isnan(found.probabilities[1]).all()
    assert found.errors[1].code == "CORRUPT"
    assert found.sources == (None, None)
    assert repr(found) == "Classification(2 x 1 labels, 1 failed)"


@pytest.mark.parametrize(
    ("arguments", "kind", "says"),
    [
        ({"labels": "cat"}, TypeError, "labels must be a list of texts"),
        ({"labels": ["cat", 5]}, TypeError, "labels must be a list of texts"),
        ({"labels": []}, ValueError, "labels must hold at least one text"),
        ({"labels": ["cat", " "]}, ValueError, "labels must hold at least one text, and no empty one"),
        ({"labels": ["cat"], "templates": ["a photo"]}, ValueError, "the template 'a photo' has no {}"),
        ({"labels": ["cat"], "templates": []}, ValueError, "templates must hold at least one text"),
    ],
)
async def test_labels_and_templates_are_checked_first(
    fake: FakeTriton, near: ClipClient, arguments: dict[str, Any], kind: type[Exception], says: str
) -> None:
    with pytest.raises(kind, match=says):
        await near.classify([b"a"], **arguments)
    assert not fake.requests
