"""open_clip's weights in the form of ``transformers``, for infinity: ``python infinity_model.py WEIGHTS DIRECTORY``.

It runs in infinity's environment. WEIGHTS is a file of ``torch.save`` with ``config`` (open_clip's), ``state``, and the
tokenizer's ``vocabulary`` (token -> id) and ``merges``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel, CLIPProcessor, CLIPTokenizer

_IMAGE = {
    "visual.class_embedding": "vision_model.embeddings.class_embedding",
    "visual.positional_embedding": "vision_model.embeddings.position_embedding.weight",
    "visual.conv1.weight": "vision_model.embeddings.patch_embedding.weight",
    "visual.ln_pre.weight": "vision_model.pre_layrnorm.weight",
    "visual.ln_pre.bias": "vision_model.pre_layrnorm.bias",
    "visual.ln_post.weight": "vision_model.post_layernorm.weight",
    "visual.ln_post.bias": "vision_model.post_layernorm.bias",
}
_TEXT = {
    "token_embedding.weight": "text_model.embeddings.token_embedding.weight",
    "positional_embedding": "text_model.embeddings.position_embedding.weight",
    "ln_final.weight": "text_model.final_layer_norm.weight",
    "ln_final.bias": "text_model.final_layer_norm.bias",
    "logit_scale": "logit_scale",
}
"""open_clip's name -> transformers' name (its spelling)."""

_BLOCK = {
    "ln_1": "layer_norm1",
    "ln_2": "layer_norm2",
    "attn.out_proj": "self_attn.out_proj",
    "mlp.c_fc": "mlp.fc1",
    "mlp.c_proj": "mlp.fc2",
}


def translated(state: dict[str, torch.Tensor], config: CLIPConfig) -> dict[str, torch.Tensor]:
    """The tensors of both towers under transformers' names."""
    tensors = {theirs: state[ours] for ours, theirs in (_IMAGE | _TEXT).items()}
    tensors["visual_projection.weight"] = state["visual.proj"].T.contiguous()
    tensors["text_projection.weight"] = state["text_projection"].T.contiguous()
    for ours, theirs, layers in (
        ("visual.transformer", "vision_model", config.vision_config.num_hidden_layers),
        ("transformer", "text_model", config.text_config.num_hidden_layers),
    ):
        for layer in range(layers):
            tensors |= translated_block(state, f"{ours}.resblocks.{layer}", f"{theirs}.encoder.layers.{layer}")
    return tensors


def translated_block(state: dict[str, torch.Tensor], ours: str, theirs: str) -> dict[str, torch.Tensor]:
    """The tensors of one layer of a transformer."""
    tensors = {}
    for kind in ("weight", "bias"):
        for name, other in _BLOCK.items():
            tensors[f"{theirs}.{other}.{kind}"] = state[f"{ours}.{name}.{kind}"]
        parts = state[f"{ours}.attn.in_proj_{kind}"].chunk(3)
        for letter, part in zip("qkv", parts, strict=True):
            tensors[f"{theirs}.self_attn.{letter}_proj.{kind}"] = part.contiguous()
    return tensors


def config_of(open_clip: dict[str, Any]) -> CLIPConfig:
    """transformers' configuration for the same towers."""
    vision, text = open_clip["vision_cfg"], open_clip["text_cfg"]
    both = {"hidden_act": "gelu", "projection_dim": open_clip["embed_dim"]}
    return CLIPConfig(
        projection_dim=open_clip["embed_dim"],
        vision_config=both
        | {
            "hidden_size": vision["width"],
            "intermediate_size": 4 * vision["width"],
            "num_hidden_layers": vision["layers"],
            "num_attention_heads": vision["width"] // vision.get("head_width", 64),
            "image_size": vision["image_size"],
            "patch_size": vision["patch_size"],
        },
        text_config=both
        | {
            "hidden_size": text["width"],
            "intermediate_size": 4 * text["width"],
            "num_hidden_layers": text["layers"],
            "num_attention_heads": text["heads"],
            "max_position_embeddings": text["context_length"],
            "vocab_size": text["vocab_size"],
            "bos_token_id": text["vocab_size"] - 2,
            "eos_token_id": text["vocab_size"] - 1,
        },
    )


def write_tokenizer(directory: Path, vocabulary: dict[str, int], merges: list[str]) -> CLIPTokenizer:
    """transformers' tokenizer with open_clip's vocabulary."""
    names = {"<start_of_text>": "<|startoftext|>", "<end_of_text>": "<|endoftext|>"}
    words = {names.get(word, word): number for word, number in vocabulary.items()}
    (directory / "vocab.json").write_text(json.dumps(words))
    (directory / "merges.txt").write_text("\n".join(("#version: 0.2", *merges, "")))
    return CLIPTokenizer(str(directory / "vocab.json"), str(directory / "merges.txt"))


def main() -> None:
    """Write the model."""
    weights, directory = Path(sys.argv[1]), Path(sys.argv[2])
    directory.mkdir(parents=True, exist_ok=True)
    saved = torch.load(weights)
    config = config_of(saved["config"])
    model = CLIPModel(config)
    found = model.load_state_dict(translated(saved["state"], config), strict=False)
    left = [name for name in found.missing_keys if "position_ids" not in name]
    if left or found.unexpected_keys:
        sys.exit(f"the model is not translated completely: {left or found.unexpected_keys}")
    model.save_pretrained(directory)
    tokenizer = write_tokenizer(directory, saved["vocabulary"], saved["merges"])
    CLIPProcessor(CLIPImageProcessor(), tokenizer).save_pretrained(directory)


if __name__ == "__main__":
    main()
