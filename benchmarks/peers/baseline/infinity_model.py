"""open_clip's weights in the form of ``transformers``, for infinity: ``python infinity_model.py WEIGHTS DIRECTORY``.

It runs in infinity's environment. WEIGHTS is a file of ``torch.save`` with ``config`` (open_clip's) and ``state``. Only
the image tower is translated; the text tower keeps random weights, because no benchmark uses it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel, CLIPProcessor, CLIPTokenizer

_SAME = {
    "class_embedding": "embeddings.class_embedding",
    "positional_embedding": "embeddings.position_embedding.weight",
    "conv1.weight": "embeddings.patch_embedding.weight",
    "ln_pre.weight": "pre_layrnorm.weight",
    "ln_pre.bias": "pre_layrnorm.bias",
    "ln_post.weight": "post_layernorm.weight",
    "ln_post.bias": "post_layernorm.bias",
}
"""open_clip's name below ``visual`` -> transformers' name below ``vision_model`` (its spelling)."""

_BLOCK = {
    "ln_1": "layer_norm1",
    "ln_2": "layer_norm2",
    "attn.out_proj": "self_attn.out_proj",
    "mlp.c_fc": "mlp.fc1",
    "mlp.c_proj": "mlp.fc2",
}


def translated(state: dict[str, torch.Tensor], layers: int) -> dict[str, torch.Tensor]:
    """The image tower's tensors under transformers' names."""
    tensors = {f"vision_model.{theirs}": state[f"visual.{ours}"] for ours, theirs in _SAME.items()}
    tensors["visual_projection.weight"] = state["visual.proj"].T.contiguous()
    for layer in range(layers):
        ours, theirs = f"visual.transformer.resblocks.{layer}", f"vision_model.encoder.layers.{layer}"
        for kind in ("weight", "bias"):
            for name, other in _BLOCK.items():
                tensors[f"{theirs}.{other}.{kind}"] = state[f"{ours}.{name}.{kind}"]
            parts = state[f"{ours}.attn.in_proj_{kind}"].chunk(3)
            for letter, part in zip("qkv", parts, strict=True):
                tensors[f"{theirs}.self_attn.{letter}_proj.{kind}"] = part.contiguous()
    return tensors


def config_of(open_clip: dict[str, Any]) -> CLIPConfig:
    """transformers' configuration for the same image tower, with the smallest text tower."""
    vision = open_clip["vision_cfg"]
    return CLIPConfig(
        projection_dim=open_clip["embed_dim"],
        vision_config={
            "hidden_size": vision["width"],
            "intermediate_size": 4 * vision["width"],
            "num_hidden_layers": vision["layers"],
            "num_attention_heads": vision["width"] // vision.get("head_width", 64),
            "image_size": vision["image_size"],
            "patch_size": vision["patch_size"],
            "hidden_act": "gelu",
            "projection_dim": open_clip["embed_dim"],
        },
        text_config={
            "hidden_size": 64,
            "intermediate_size": 64,
            "num_hidden_layers": 1,
            "num_attention_heads": 1,
            "vocab_size": 512,
            "projection_dim": open_clip["embed_dim"],
        },
    )


def write_tokenizer(directory: Path) -> CLIPTokenizer:
    """The smallest tokenizer that CLIPProcessor accepts: single letters."""
    letters = [chr(code) for code in range(33, 127)]
    words = ["<|startoftext|>", "<|endoftext|>", *letters, *(f"{letter}</w>" for letter in letters)]
    (directory / "vocab.json").write_text(json.dumps({word: number for number, word in enumerate(words)}))
    (directory / "merges.txt").write_text("#version: 0.2\n")
    return CLIPTokenizer(str(directory / "vocab.json"), str(directory / "merges.txt"))


def main() -> None:
    """Write the model."""
    weights, directory = Path(sys.argv[1]), Path(sys.argv[2])
    directory.mkdir(parents=True, exist_ok=True)
    saved = torch.load(weights)
    config = config_of(saved["config"])
    model = CLIPModel(config)
    found = model.load_state_dict(translated(saved["state"], config.vision_config.num_hidden_layers), strict=False)
    left = [name for name in found.missing_keys if name.startswith("vis") and "position_ids" not in name]
    if left or found.unexpected_keys:
        sys.exit(f"the image tower is not translated completely: {left or found.unexpected_keys}")
    model.save_pretrained(directory)
    CLIPProcessor(CLIPImageProcessor(), write_tokenizer(directory)).save_pretrained(directory)


if __name__ == "__main__":
    main()
