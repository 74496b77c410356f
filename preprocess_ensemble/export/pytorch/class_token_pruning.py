"""Prunes the last block of a vision transformer to the class token (7 % fewer FLOPs in ViT-B-32).

open_clip's image towers pool by their class token: only row 0 of the last block's output (N, L, D) is used. The block's
keys and values need all tokens. Its queries, its projection and its MLP, ten twelfths of a block's products, need only
that row. The result is the same up to the order of additions, and the parity check compares it with PyTorch's
own tower.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from open_clip.transformer import ResidualAttentionBlock, VisionTransformer
from torch import nn


class _ClassTokenBlock(nn.Module):
    """open_clip's ``ResidualAttentionBlock``: (N, L, D) in, its row 0 out as (N, 1, D)."""

    def __init__(self, block: Any) -> None:
        super().__init__()
        self.heads: int = block.attn.num_heads
        width = block.attn.embed_dim
        weight, bias = block.attn.in_proj_weight, block.attn.in_proj_bias
        self.query = _linear(weight[:width], bias[:width])
        self.key = _linear(weight[width : 2 * width], bias[width : 2 * width])
        self.value = _linear(weight[2 * width :], bias[2 * width :])
        self.ln_1, self.out_proj, self.ls_1 = block.ln_1, block.attn.out_proj, block.ls_1
        self.ln_2, self.mlp, self.ls_2 = block.ln_2, block.mlp, block.ls_2

    def forward(self, tokens: torch.Tensor, attn_mask: None = None) -> torch.Tensor:
        normal = self.ln_1(tokens)
        queries, keys, values = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (N, heads, L or 1, D / heads)
            for part in (self.query(normal[:, :1]), self.key(normal), self.value(normal))
        )
        weights = (queries @ keys.transpose(-1, -2) * keys.shape[-1] ** -0.5).softmax(dim=-1)
        attended = (weights @ values).transpose(1, 2).flatten(2)  # (N, 1, D)
        token: torch.Tensor = tokens[:, :1] + self.ls_1(self.out_proj(attended))
        return token + cast("torch.Tensor", self.ls_2(self.mlp(self.ln_2(token))))


def _linear(weight: torch.Tensor, bias: torch.Tensor) -> nn.Linear:
    linear = nn.Linear(weight.shape[1], weight.shape[0], device=weight.device, dtype=weight.dtype)
    linear.weight, linear.bias = nn.Parameter(weight.detach()), nn.Parameter(bias.detach())
    return linear


def prune_to_class_token(tower: nn.Module) -> bool:
    """Change ``tower`` in place so that its last block computes only the class token.

    Returns False, and changes nothing, if the tower is not an open_clip transformer that pools by its class token.
    """
    vision = cast("Any", tower)
    if type(vision) is not VisionTransformer or vision.output_tokens or vision.attn_pool is not None:
        return False
    blocks = vision.transformer.resblocks
    if (
        vision.pool_type != "tok"
        or not vision.transformer.batch_first
        or type(blocks[-1]) is not ResidualAttentionBlock
    ):
        return False
    blocks[-1] = _ClassTokenBlock(blocks[-1])
    return True
