"""A small BERT encoder whose parameters are called as in the files of weights. Also usable as a factory of its own.

edgeopt build bert:make --weights model.safetensors ...
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

VOCABULARY, POSITIONS, TYPES = 30522, 512, 2
WIDTH, INNER, HEADS, LAYERS, EPSILON = 384, 1536, 12, 6, 1e-12


class Embeddings(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(VOCABULARY, WIDTH)
        self.position_embeddings = nn.Embedding(POSITIONS, WIDTH)
        self.token_type_embeddings = nn.Embedding(TYPES, WIDTH)
        self.LayerNorm = nn.LayerNorm(WIDTH, eps=EPSILON)
        self.register_buffer("position_ids", torch.arange(POSITIONS)[None])

    def forward(self, input_ids: Tensor) -> Tensor:
        positions = self.position_embeddings(self.position_ids[:, : input_ids.shape[1]])
        found = self.word_embeddings(input_ids) + self.token_type_embeddings.weight[0]
        normed: Tensor = self.LayerNorm(found + positions)
        return normed


class SelfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        q, k, v = (self.heads(linear(x)) for linear in (self.query, self.key, self.value))
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(WIDTH // HEADS) + bias
        mixed = torch.matmul(torch.softmax(scores, dim=-1), v).permute(0, 2, 1, 3)
        return mixed.reshape(x.shape[0], x.shape[1], WIDTH)

    def heads(self, x: Tensor) -> Tensor:
        """[B,S,384] -> [B,12,S,32]."""
        return x.reshape(x.shape[0], x.shape[1], HEADS, WIDTH // HEADS).permute(0, 2, 1, 3)


class Output(nn.Module):
    """A linear layer, the residual, a LayerNorm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, WIDTH)
        self.LayerNorm = nn.LayerNorm(WIDTH, eps=EPSILON)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        normed: Tensor = self.LayerNorm(self.dense(x) + residual)
        return normed


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.ModuleDict({"self": SelfAttention(), "output": Output(WIDTH)})
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(WIDTH, INNER)})
        self.output = Output(INNER)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        x = self.attention["output"](self.attention["self"](x, bias), x)
        found: Tensor = self.output(nn.functional.gelu(self.intermediate["dense"](x)), x)
        return found


class Bert(nn.Module):
    """``input_ids, attention_mask`` int64 [B,S] -> ``last_hidden_state`` float32 [B,S,384].

    The pooler is in the files of weights and is not used.
    """

    def __init__(self) -> None:
        super().__init__()
        self.embeddings = Embeddings()
        self.encoder = nn.ModuleDict({"layer": nn.ModuleList(Layer() for _ in range(LAYERS))})
        self.pooler = nn.ModuleDict({"dense": nn.Linear(WIDTH, WIDTH)})

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.embeddings(input_ids)
        bias = (1.0 - attention_mask[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        for layer in self.encoder["layer"]:
            x = layer(x, bias)
        return x


def make() -> nn.Module:
    """The network without its weights."""
    return Bert().eval()
