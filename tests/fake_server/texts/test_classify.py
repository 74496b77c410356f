"""``classify``: how labels and templates become probabilities; tests/live/client compares these with open_clip's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from clip_client import ModelNotReady
from clip_client.testing import FakeTriton, Reply, fake_vector
from tests.fixtures.fakes import InMemoryClient

if TYPE_CHECKING:
    from clip_client import ClipClient

LABELS = ["cat", "dog on a beach", "tax return"]
IMAGES = [b"image %d" % number for number in range(5)]


@pytest.mark.parametrize("bias", [None, -10.0], ids=["softmax", "sigmoid"])
async def test_a_label_is_the_mean_of_its_templates(bias: float | None) -> None:
    server = FakeTriton(has_text=True)
    server.logit_scale, server.logit_bias = 10.0, bias
    async with InMemoryClient({"localhost": server}) as clip:
        found = await clip.classify(iter(IMAGES), LABELS, templates=["{}", "a picture of {}"], timeout_s=60)
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
        ({"labels": "cat"}, TypeError, "labels is a list of texts"),
        ({"labels": ["cat", 5]}, TypeError, "labels is a list of texts"),
        ({"labels": []}, ValueError, "labels is empty"),
        ({"labels": ["cat", " "]}, ValueError, "labels is empty, or one of them is"),
        ({"labels": ["cat"], "templates": ["a photo"]}, ValueError, "the template 'a photo' has no {}"),
        ({"labels": ["cat"], "templates": []}, ValueError, "templates is empty"),
    ],
)
async def test_labels_and_templates_are_checked_first(
    fake: FakeTriton, near: ClipClient, arguments: dict[str, Any], kind: type[Exception], says: str
) -> None:
    with pytest.raises(kind, match=says):
        await near.classify([b"a"], **arguments)
    assert not fake.requests


async def test_it_needs_a_text_tower() -> None:
    async with InMemoryClient({"localhost": FakeTriton()}) as clip:
        with pytest.raises(ModelNotReady, match="clip-export --towers image,text"):
            await clip.classify([b"a"], ["cat"])
