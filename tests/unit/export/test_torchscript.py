"""SSCD's TorchScript files: the vectors are those of its authors' own code, and other files are refused."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image

from clip_client import ClipClient
from preprocess_ensemble.export.command import main
from tests.fixtures.models.sscd import write_sscd

if TYPE_CHECKING:
    from pathlib import Path

NAME = "sscd_disc_mixup.torchscript.pt"


@pytest.mark.parametrize("frozen", [False, True])
async def test_vectors_are_those_of_its_authors(tmp_path: Path, photos: Path, frozen: bool) -> None:
    import torch
    from torchvision import transforms

    file, repository = tmp_path / NAME, tmp_path / "triton_models"
    write_sscd(file, frozen=frozen)
    options = ["--model", str(file), "--repository", str(repository), "--name", "copies"]
    assert main(options) == 0
    images = [photos / name for name in ("astronaut.jpg", "coffee.jpg")]
    async with ClipClient(f"local:{repository}", model="copies", transfer="original") as clip:
        vectors = (await clip.embed(images)).vectors
        model = await clip.model()
    assert (model.model, model.pretrained, model.text) == ("sscd_disc_mixup", f"file:{NAME}", None)
    # What the authors' README says: skew_320.
    normalize = transforms.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225])
    skew_320 = transforms.Compose([transforms.Resize([320, 320]), transforms.ToTensor(), normalize])
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")
        script = torch.jit.load(str(file))  # type: ignore[no-untyped-call]
        expected = script(torch.stack([skew_320(Image.open(image).convert("RGB")) for image in images])).numpy()
    assert np.all(np.sum(vectors * expected, axis=1) > 0.9999)


@pytest.mark.parametrize(
    ("name", "options", "status", "says"),
    [
        ("mine.torchscript.pt", [], 2, "whose preprocessing is known: sscd_disc_mixup"),
        ("sscd_disc_blur.torchscript.pt", [], 1, "cannot be used"),
        ("nowhere/sscd_disc_blur.torchscript.pt", [], 1, "No such file"),
        (NAME, ["--precision", "fp16"], 2, "fp16"),
        (NAME, ["--pretrained", "random"], 2, "has its own"),
    ],
)
def test_what_cannot_be_exported_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, options: list[str], status: int, says: str
) -> None:
    if options:
        write_sscd(tmp_path / NAME)
    (tmp_path / "sscd_disc_blur.torchscript.pt").write_bytes(b"no archive")
    assert main(["--model", str(tmp_path / name), "--repository", str(tmp_path / "repository"), *options]) == status
    assert says in capsys.readouterr().err
