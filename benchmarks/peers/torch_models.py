"""GPT-2 and Llama decoders in plain PyTorch, written the way a user who wants speed from torch.compile would."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Shape:
    family: str
    width: int
    layers: int
    heads: int
    mlp: int
    vocabulary: int
    positions: int
    batch: int
    sequence: int


SHAPES: dict[str, Shape] = {
    "llama-110m": Shape("llama", 768, 12, 12, 2048, 32000, 1024, batch=4, sequence=512),
    "gpt2-124m": Shape("gpt2", 768, 12, 12, 3072, 50257, 1024, batch=4, sequence=256),
}


def rotary_tables(head_width: int, positions: int, theta: float = 10000.0) -> tuple[Tensor, Tensor]:
    frequencies = theta ** (-torch.arange(0, head_width, 2).float() / head_width)
    angles = torch.outer(torch.arange(positions).float(), frequencies)
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


class Attention(nn.Module):
    """Causal self-attention; one matrix for q, k and v, which is at least as fast as three."""

    def __init__(self, shape: Shape, bias: bool) -> None:
        super().__init__()
        self.heads = shape.heads
        self.qkv = nn.Linear(shape.width, 3 * shape.width, bias=bias)
        self.out = nn.Linear(shape.width, shape.width, bias=bias)

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor] | None) -> Tensor:
        batch, sequence, width = x.shape
        q, k, v = self.qkv(x).view(batch, sequence, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        if rotary is not None:
            q, k = rotate(q, *rotary), rotate(k, *rotary)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, sequence, width))


class Gpt2Block(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(shape.width), nn.LayerNorm(shape.width)
        self.attention = Attention(shape, bias=True)
        self.up, self.down = nn.Linear(shape.width, shape.mlp), nn.Linear(shape.mlp, shape.width)

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor] | None) -> Tensor:
        x = x + self.attention(self.norm_1(x), rotary)
        return x + self.down(F.gelu(self.up(self.norm_2(x)), approximate="tanh"))


class LlamaBlock(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.RMSNorm(shape.width, eps=1e-5), nn.RMSNorm(shape.width, eps=1e-5)
        self.attention = Attention(shape, bias=False)
        self.gate_up = nn.Linear(shape.width, 2 * shape.mlp, bias=False)
        self.down = nn.Linear(shape.mlp, shape.width, bias=False)

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor] | None) -> Tensor:
        x = x + self.attention(self.norm_1(x), rotary)
        gate, up = self.gate_up(self.norm_2(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class Decoder(nn.Module):
    """Returns the mean cross-entropy; the head is tied to the token embedding."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        is_llama = shape.family == "llama"
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.positions = None if is_llama else nn.Embedding(shape.positions, shape.width)
        block = LlamaBlock if is_llama else Gpt2Block
        self.blocks = nn.ModuleList(block(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width, eps=1e-5) if is_llama else nn.LayerNorm(shape.width)
        if is_llama:
            cos, sin = rotary_tables(shape.width // shape.heads, shape.sequence)
            self.register_buffer("cos", cos, persistent=False)
            self.register_buffer("sin", sin, persistent=False)
        for parameter in self.parameters():
            if parameter.dim() >= 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, inputs: Tensor, labels: Tensor) -> Tensor:
        x = self.tokens(inputs)
        rotary = None
        if self.positions is None:
            rotary = (self.cos, self.sin)
        else:
            x = x + self.positions.weight[: inputs.shape[1]]
        for block in self.blocks:
            x = block(x, rotary)
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())
