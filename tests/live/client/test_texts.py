"""Texts through a real server and in this process: both make the vectors of open_clip."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from benchmarks.fixtures.server import TINY_CLIP, Server
from clip_client import ClipClient, ModelNotReady, SyncClipClient, nearest
from tests.fixtures.models.exports import load_model

TEXTS = ["a dog on the beach", "Ein HUND &amp; zwei Katzen!", "海边的狗", "one word after another " * 40, "köpek"]
BAD = [" \n", "half a \ud83d", "long" * 2**15]
LABELS = ["cat", "a dog on the beach", "tax return"]


def open_clips(images: list[Path], templates: Any) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    import open_clip
    import torch

    model: Any = load_model(str(TINY_CLIP), "random:0")
    tokenizer: Any = open_clip.get_tokenizer(TINY_CLIP.stem)
    transform: Any = open_clip.transform.image_transform_v2(open_clip.transform.PreprocessCfg(size=224), is_train=False)
    with torch.inference_mode():
        texts = model.encode_text(tokenizer(TEXTS), normalize=True)
        pixels = torch.stack([transform(Image.open(image)) for image in images])
        classes = open_clip.build_zero_shot_classifier(model, tokenizer, LABELS, templates)
        logits = model.logit_scale.exp() * model.encode_image(pixels, normalize=True) @ classes
    return texts.numpy(), logits.softmax(dim=-1).numpy()


async def test_texts_have_the_vectors_of_open_clip_from_both(two_models: Server, photos: Path) -> None:
    from open_clip.zero_shot_metadata import SIMPLE_IMAGENET_TEMPLATES

    files = [photos / name for name in ("coffee.jpg", "chelsea.png")]
    expected, shares = open_clips(files, SIMPLE_IMAGENET_TEMPLATES)
    urls = two_models.grpc_url, f"local:{two_models.repository}"
    async with ClipClient(urls[0], transfer="original") as remote, ClipClient(urls[1], transfer="original") as here:
        for clip in (remote, here):
            batch = await clip.embed_text([*TEXTS, *BAD])
            assert ((batch.vectors[: len(TEXTS)] * expected).sum(axis=1) > 0.999999).all()
            assert batch.truncated == (3,)
            codes = {index: error.code for index, error in batch.errors.items()}
            assert codes == {5: "EMPTY", 6: "NOT_UTF8", 7: "TOO_LARGE"}
            found = await clip.classify(files, LABELS)
            np.testing.assert_allclose(found.probabilities, shares, atol=1e-5)
            assert (await clip.health()).ok
            assert (await clip.health()).steps[-1].name == "text canary"
        for text in TEXTS:  # one a request on both sides
            there, there_not = await remote.embed_text(text), await here.embed_text(text)
            np.testing.assert_array_equal(there.vectors, there_not.vectors)
            assert there.vector_id == there_not.vector_id


async def test_a_model_is_chosen_by_name_and_not_by_that_of_its_architecture(two_models: Server, photos: Path) -> None:
    photo = photos / "coffee.jpg"
    for url in (two_models.grpc_url, f"local:{two_models.repository}"):
        async with ClipClient(url) as first, ClipClient(url, model="second") as second:
            image, other = await first.embed(photo), await second.embed(photo)
            assert (first.vector_id, image.model_id[:18]) != (second.vector_id, other.model_id[:18])
            assert abs(float((image.vectors * other.vectors).sum())) < 0.9
            assert (await second.health()).ok
            with pytest.raises(ModelNotReady, match="no text tower"):
                await second.embed_text("a")
            assert len(nearest(await first.embed_text("coffee"), image, 1)[0]) == 1
        async with ClipClient(url, model="ViT-B-32") as clip:
            known = r"model named 'ViT-B-32'.*'clip', 'second'\. Name a model with model="
            with pytest.raises(ModelNotReady, match=known):
                await clip.model()


def test_only_a_text_loads_the_text_tower(two_models_repository: Path, photos: Path) -> None:
    script = (
        "import sys\n"
        "from clip_client import SyncClipClient\n"
        "with SyncClipClient(sys.argv[1]) as clip:\n"
        "    assert clip.model().text is not None\n"
        "    assert not clip.embed(sys.argv[2]).errors\n"
        "    print(sorted({'tokenizers', 'ftfy', 'regex'} & set(sys.modules)))\n"
        "    assert not clip.embed_text('a').errors\n"
        "    print(sorted({'tokenizers', 'ftfy', 'regex'} & set(sys.modules)))\n"
    )
    arguments = [f"local:{two_models_repository}", str(photos / "coffee.jpg")]
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "['ftfy', 'regex', 'tokenizers']"]


@pytest.mark.parametrize(
    ("file", "says"),
    [("clip_tokenize/1/tokenizer.json", "not the file"), ("clip_text_encoder/1/model.onnx", "cannot load")],
)
def test_a_damaged_text_tower_fails_texts_only(
    tiny_pair_repository: Path, tmp_path: Path, photos: Path, file: str, says: str
) -> None:
    folder = tmp_path / "triton_models"
    shutil.copytree(tiny_pair_repository, folder)
    (folder / file).write_bytes(b"{}")
    with SyncClipClient(f"local:{folder}", timeout_s=5) as clip:
        assert not clip.embed(photos / "coffee.jpg").errors
        step = clip.health().failed
    assert step is not None
    assert step.name == "text canary"
    assert says in step.message
    assert "export the model again" in step.message
