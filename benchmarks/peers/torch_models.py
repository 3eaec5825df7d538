"""GPT-2 and Llama decoders in plain PyTorch, the latter also with experts, written the way a user who wants speed from
torch.compile would."""

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
    # With experts, `mlp` is the width of each.
    experts: int = 0
    per_token: int = 0
    renormalizes: bool = False  # the weights of a token's experts
    joins_heads: bool = False  # q and k are normed over all of their heads together, as in OLMoE
    balance: float = 0.0  # what the loss of balance is multiplied by


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
        # As benchmarks/peers/models has them.
        "olmoe-4-layers": Shape("llama", 2048, 4, 16, 1024, 50304, 4096, batch=8, sequence=4096, tied=False, experts=64,
                                per_token=8, joins_heads=True, balance=0.01),
        "mixtral-8x300m": Shape("llama", 1024, 18, 8, 3584, 32000, 4096, batch=6, sequence=4096, kv_heads=2,
                                tied=False, experts=8, per_token=2, renormalizes=True, balance=0.001),
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
        self.norms = None
        if shape.joins_heads:
            self.norms = nn.ModuleList(nn.RMSNorm(heads * self.head_width, eps=1e-5)
                                       for heads in (self.heads, self.kv_heads))

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor] | None) -> Tensor:
        batch, sequence, width = x.shape
        qkv = self.qkv(x)
        if self.norms is not None:
            widths = [heads * self.head_width for heads in (self.heads, self.kv_heads, self.kv_heads)]
            q, k, v = qkv.split(widths, dim=-1)
            qkv = torch.cat([self.norms[0](q).to(v.dtype), self.norms[1](k).to(v.dtype), v], dim=-1)
        heads = qkv.view(batch, sequence, -1, self.head_width).transpose(1, 2)
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


class ToExperts(torch.autograd.Function):
    """Rows of tokens in the order of their experts. Backward gathers too; PyTorch's own would add atomically."""

    @staticmethod
    def forward(ctx, x: Tensor, order: Tensor, place: Tensor, per_token: int) -> Tensor:
        ctx.save_for_backward(place)
        ctx.per_token = per_token
        return x[order // per_token]

    @staticmethod
    def backward(ctx, drows: Tensor):
        (place,) = ctx.saved_tensors
        return drows[place].view(-1, ctx.per_token, drows.shape[-1]).sum(1), None, None, None


class FromExperts(torch.autograd.Function):
    """The other way: rows by token and choice."""

    @staticmethod
    def forward(ctx, rows: Tensor, order: Tensor, place: Tensor) -> Tensor:
        ctx.save_for_backward(order)
        return rows[place]

    @staticmethod
    def backward(ctx, dchoices: Tensor):
        (order,) = ctx.saved_tensors
        return dchoices[order], None, None


def grouped_product(rows: Tensor, matrices: Tensor, ends: Tensor) -> Tensor:
    """rows of each expert times its matrix [out, in], transposed."""
    if rows.is_cuda:
        product = getattr(F, "grouped_mm", None) or torch._grouped_mm
        return product(rows, matrices.transpose(-2, -1), offs=ends)
    begins = [0, *ends.tolist()]
    return torch.cat([rows[begin:end] @ matrix.T for begin, end, matrix in zip(begins, begins[1:], matrices)])


class Experts(nn.Module):
    """Dropless: as many rows for an expert as choose it, and one grouped product for all. Nothing is read back."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.router = nn.Linear(shape.width, shape.experts, bias=False)
        self.gate_up = nn.Parameter(torch.empty(shape.experts, 2 * shape.mlp, shape.width))
        self.down = nn.Parameter(torch.empty(shape.experts, shape.width, shape.mlp))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        shape, flat = self.shape, x.reshape(-1, x.shape[-1])
        computes_in = torch.bfloat16 if x.is_cuda else x.dtype
        scores = F.softmax(self.router(flat), dim=-1, dtype=torch.float32)
        weights, chosen = scores.topk(shape.per_token, dim=-1)
        if shape.renormalizes:
            weights = weights / weights.sum(-1, keepdim=True)
        experts, order = chosen.flatten().sort(stable=True)
        place = torch.empty_like(order).scatter_(0, order, torch.arange(order.numel(), device=x.device))
        ends = torch.searchsorted(experts, torch.arange(shape.experts, device=x.device), right=True, out_int32=True)

        rows = ToExperts.apply(flat.to(computes_in), order, place, shape.per_token)
        gate, up = grouped_product(rows, self.gate_up.to(computes_in), ends).chunk(2, dim=-1)
        rows = grouped_product(F.silu(gate) * up, self.down.to(computes_in), ends)
        choices = FromExperts.apply(rows, order, place).view(-1, shape.per_token, x.shape[-1])
        y = (choices * weights.unsqueeze(-1)).sum(1).to(computes_in).view_as(x)

        shares = torch.diff(ends, prepend=ends.new_zeros(1)) / flat.shape[0]
        return y, shape.experts * (shares * scores.mean(0)).sum()


class ExpertsBlock(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.RMSNorm(shape.width, eps=1e-5), nn.RMSNorm(shape.width, eps=1e-5)
        self.attention = Attention(shape, bias=False)
        self.experts = Experts(shape)

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor]:
        x = x + self.attention(self.norm_1(x), rotary)
        y, unbalanced = self.experts(self.norm_2(x))
        return x + y, unbalanced


class Decoder(nn.Module):
    """Returns the mean cross-entropy, with experts also the mean over layers of their loss of balance."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        is_llama = shape.family == "llama"
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.positions = None if is_llama else nn.Embedding(shape.positions, shape.width)
        block = ExpertsBlock if shape.experts else LlamaBlock if is_llama else Gpt2Block
        self.balance = shape.balance / shape.layers
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
        unbalanced = 0.0
        for block in self.blocks:
            x = block(x, rotary)
            if isinstance(block, ExpertsBlock):
                x, of_block = x
                unbalanced = unbalanced + of_block
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten()) + self.balance * unbalanced
