"""``classify``: open_clip's own computation, with the vectors of its own model, gives the same probabilities."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from clip_client import ClipClient, ModelNotReady, SyncClipClient
from clip_client.testing import FakeTriton, InMemoryTransports, Reply

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

LABELS = ["cat", "dog on a beach", "tax return"]
IMAGES = [b"image %d" % number for number in range(5)]


class OpenClip:
    """A small model of open_clip, and a server that gives its vectors; images are seeds of pixels."""

    def __init__(self, *, bias: float | None) -> None:
        import open_clip
        import torch

        torch.manual_seed(0)
        vision = {"image_size": 32, "layers": 1, "width": 64, "head_width": 32, "patch_size": 16}
        text = {"context_length": 16, "vocab_size": 49408, "width": 64, "heads": 2, "layers": 1}
        self.model = open_clip.CLIP(64, vision, text, init_logit_bias=bias).eval()
        self.tokenizer = open_clip.SimpleTokenizer(context_length=16)
        self.server = FakeTriton(dimension=64, has_text=True, vector=self.vector)
        self.server.logit_scale = float(self.model.logit_scale.detach().exp())
        self.server.logit_bias = bias

    def pixels(self, image: bytes) -> torch.Tensor:
        import torch

        generator = torch.Generator().manual_seed(int.from_bytes(image[-4:], "little"))
        return torch.randn(1, 3, 32, 32, generator=generator)

    def vector(self, item: bytes) -> NDArray[np.float32]:
        import torch

        with torch.no_grad():
            if item.startswith((b"image", b"\x89PNG")):
                found = self.model.encode_image(self.pixels(item), normalize=True)
            else:
                found = self.model.encode_text(self.tokenizer([item.decode()]), normalize=True)
        vector: NDArray[np.float32] = found[0].numpy()
        return vector

    def probabilities(self, templates: Any) -> NDArray[np.float32]:
        import open_clip
        import torch

        with torch.no_grad():
            classes = open_clip.build_zero_shot_classifier(self.model, self.tokenizer, LABELS, templates)
            features = self.model.encode_image(torch.cat([self.pixels(image) for image in IMAGES]), normalize=True)
            logits = self.model.logit_scale.exp() * features @ classes
            if self.model.logit_bias is None:
                shares: NDArray[np.float32] = logits.softmax(dim=-1).numpy()
            else:
                shares = (logits + self.model.logit_bias).sigmoid().numpy()
        return shares

    def client(self) -> ClipClient:
        return ClipClient("localhost", transport_factory=InMemoryTransports({"localhost": self.server}))


@pytest.mark.parametrize("bias", [None, -10.0], ids=["softmax", "sigmoid"])
async def test_probabilities_are_those_of_open_clip(bias: float | None) -> None:
    from open_clip.zero_shot_metadata import SIMPLE_IMAGENET_TEMPLATES

    model = OpenClip(bias=bias)
    async with model.client() as clip:
        found = await clip.classify(IMAGES, LABELS)
        own = await clip.classify(iter(IMAGES), LABELS, templates=["{}", "a picture of {}"], timeout_s=60)
    assert found.labels == tuple(LABELS)
    assert found.probabilities.dtype == np.float32
    np.testing.assert_allclose(found.probabilities, model.probabilities(SIMPLE_IMAGENET_TEMPLATES), rtol=2e-5)
    np.testing.assert_allclose(own.probabilities, model.probabilities(["{}", "a picture of {}"]), rtol=2e-5)
    assert (bias is None) == bool(np.allclose(found.probabilities.sum(axis=1), 1, atol=1e-5))
    assert found.probabilities.std(axis=1).min() > 0  # it tells the labels apart


@pytest.fixture
def server() -> FakeTriton:
    return FakeTriton(has_text=True)


def test_an_image_that_fails_has_no_probabilities(server: FakeTriton) -> None:
    transports = InMemoryTransports({"localhost": server})
    with SyncClipClient("localhost", transport_factory=transports) as clip:
        server.script(Reply(), Reply(row_errors={1: (5, "It contradicts itself.")}))
        found = clip.classify([b"a", b"b"], ["cat"], templates=["{}"])
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
    server: FakeTriton, arguments: dict[str, Any], kind: type[Exception], says: str
) -> None:
    async with ClipClient("localhost", transport_factory=InMemoryTransports({"localhost": server})) as clip:
        with pytest.raises(kind, match=says):
            await clip.classify([b"a"], **arguments)
    assert not server.requests


async def test_it_needs_a_text_tower() -> None:
    async with ClipClient("localhost", transport_factory=InMemoryTransports({"localhost": FakeTriton()})) as clip:
        with pytest.raises(ModelNotReady, match="clip-export --towers image,text"):
            await clip.classify([b"a"], ["cat"])
