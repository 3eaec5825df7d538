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
    kv_heads: int | None = None  # as many as heads
    tied: bool = True
    theta: float = 10000.0


SHAPES: dict[str, dict[str, Shape]] = {
    "cpu": {
        "llama-110m": Shape("llama", 768, 12, 12, 2048, 32000, 1024, batch=4, sequence=512),
        "gpt2-124m": Shape("gpt2", 768, 12, 12, 3072, 50257, 1024, batch=4, sequence=256),
    },
    "cuda": {
        # The vocabulary is padded, as people do who want speed: 50257 rows cost PyTorch a third of its throughput.
        "gpt2-124m": Shape("gpt2", 768, 12, 12, 3072, 50304, 1024, batch=32, sequence=1024),
        "tinyllama-1.1b": Shape("llama", 2048, 22, 32, 5632, 32000, 2048, batch=8, sequence=2048, kv_heads=4,
                                tied=False),
        "llama3.2-1b": Shape("llama", 2048, 16, 32, 8192, 128256, 131072, batch=4, sequence=4096, kv_heads=8,
                             theta=500000.0),
    },
}


def rotary_tables(head_width: int, positions: int, theta: float) -> tuple[Tensor, Tensor]:
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
        self.heads, self.kv_heads = shape.heads, shape.kv_heads or shape.heads
        self.head_width = shape.width // shape.heads
        self.qkv = nn.Linear(shape.width, (self.heads + 2 * self.kv_heads) * self.head_width, bias=bias)
        self.out = nn.Linear(shape.width, shape.width, bias=bias)

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor] | None) -> Tensor:
        batch, sequence, width = x.shape
        heads = self.qkv(x).view(batch, sequence, -1, self.head_width).transpose(1, 2)
        q, k, v = heads.split([self.heads, self.kv_heads, self.kv_heads], dim=1)
        if rotary is not None:
            q, k = rotate(q, *rotary), rotate(k, *rotary)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.kv_heads < self.heads)
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
    """Returns the mean cross-entropy."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        is_llama = shape.family == "llama"
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.positions = None if is_llama else nn.Embedding(shape.positions, shape.width)
        block = LlamaBlock if is_llama else Gpt2Block
        self.blocks = nn.ModuleList(block(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width, eps=1e-5) if is_llama else nn.LayerNorm(shape.width)
        if is_llama:
            cos, sin = rotary_tables(shape.width // shape.heads, shape.sequence, shape.theta)
            self.register_buffer("cos", cos, persistent=False)
            self.register_buffer("sin", sin, persistent=False)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)
        if shape.tied:
            self.head.weight = self.tokens.weight
        for parameter in self.parameters():
            if parameter.dim() >= 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, inputs: Tensor, labels: Tensor) -> Tensor:
        x = self.tokens(inputs)
        rotary = None
        if self.positions is None:
            rotary = (self.cos.to(x.dtype), self.sin.to(x.dtype))
        else:
            x = x + self.positions.weight[: inputs.shape[1]]
        for block in self.blocks:
            x = block(x, rotary)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())
