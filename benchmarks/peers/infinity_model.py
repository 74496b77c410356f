"""open_clip's weights in the form of ``transformers``, for infinity: ``python infinity_model.py WEIGHTS DIRECTORY``.

It runs in infinity's environment. WEIGHTS is a file of ``torch.save`` with ``config`` (open_clip's), ``state``, and the
tokenizer's ``vocabulary`` (token -> id) and ``merges``.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel, CLIPProcessor, CLIPTokenizer

_NAMES = (
    (r"^visual\.class_embedding$", "vision_model.embeddings.class_embedding"),
    (r"^visual\.positional_embedding$", "vision_model.embeddings.position_embedding.weight"),
    (r"^visual\.conv1\.", "vision_model.embeddings.patch_embedding."),
    (r"^visual\.ln_pre\.", "vision_model.pre_layrnorm."),
    (r"^visual\.ln_post\.", "vision_model.post_layernorm."),
    (r"^visual\.proj$", "visual_projection.weight"),
    (r"^visual\.transformer\.resblocks\.", "vision_model.encoder.layers."),
    (r"^token_embedding\.", "text_model.embeddings.token_embedding."),
    (r"^positional_embedding$", "text_model.embeddings.position_embedding.weight"),
    (r"^ln_final\.", "text_model.final_layer_norm."),
    (r"^text_projection$", "text_projection.weight"),
    (r"^transformer\.resblocks\.", "text_model.encoder.layers."),
    (r"\.ln_(\d)\.", r".layer_norm\1."),
    (r"\.mlp\.c_fc\.", ".mlp.fc1."),
    (r"\.mlp\.c_proj\.", ".mlp.fc2."),
    (r"\.attn\.", ".self_attn."),
)
"""open_clip's names -> those of transformers (its spelling)."""


def translated(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    tensors = {}
    for name, tensor in state.items():
        for pattern, other in _NAMES:
            name = re.sub(pattern, other, name)
        if "in_proj_" in name:
            for letter, part in zip("qkv", tensor.chunk(3), strict=True):
                tensors[name.replace("in_proj_", f"{letter}_proj.")] = part.contiguous()
        else:
            tensors[name] = tensor.T.contiguous() if name.endswith("_projection.weight") else tensor
    return tensors


def config_of(open_clip: dict[str, Any]) -> CLIPConfig:
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
    names = {"<start_of_text>": "<|startoftext|>", "<end_of_text>": "<|endoftext|>"}
    words = {names.get(word, word): number for word, number in vocabulary.items()}
    (directory / "vocab.json").write_text(json.dumps(words))
    (directory / "merges.txt").write_text("\n".join(("#version: 0.2", *merges, "")))
    return CLIPTokenizer(str(directory / "vocab.json"), str(directory / "merges.txt"))


def main() -> None:
    weights, directory = Path(sys.argv[1]), Path(sys.argv[2])
    saved = torch.load(weights)
    model = CLIPModel(config_of(saved["config"]))
    found = model.load_state_dict(translated(saved["state"]), strict=False)
    left = [name for name in found.missing_keys if "position_ids" not in name]
    if left or found.unexpected_keys:
        sys.exit(f"the model is not translated completely: {left or found.unexpected_keys}")
    model.save_pretrained(directory)
    tokenizer = write_tokenizer(directory, saved["vocabulary"], saved["merges"])
    CLIPProcessor(CLIPImageProcessor(), tokenizer).save_pretrained(directory)


if __name__ == "__main__":
    main()
