"""GPU memory of one layer of experts whose rows are made by products with one-hot matrices, as GShard and Fairseq have it:
dispatch and combine are [tokens, experts, capacity]. Prints a line for each number of tokens."""

import sys

import torch
import torch.nn.functional as F

WIDTH, INNER, EXPERTS, PER_TOKEN = 4096, 4096, 2, 2


def layer(x: torch.Tensor, router: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    tokens = x.shape[0]
    capacity = PER_TOKEN * tokens // EXPERTS
    weights, chosen = F.softmax(x @ router, dim=-1, dtype=torch.float32).topk(PER_TOKEN, dim=-1)
    combine = torch.zeros(tokens, EXPERTS, capacity, device=x.device, dtype=x.dtype)
    taken = torch.zeros(EXPERTS, device=x.device, dtype=torch.long)
    for k in range(PER_TOKEN):
        mask = F.one_hot(chosen[:, k], EXPERTS)
        place = ((mask.cumsum(0) - 1 + taken) * mask).sum(-1)
        taken = taken + mask.sum(0)
        places = F.one_hot(place, capacity).to(x.dtype)
        combine = combine + torch.einsum("te,tc->tec", mask.to(x.dtype) * weights[:, k : k + 1].to(x.dtype), places)
    rows = torch.einsum("tec,td->ecd", combine.ne(0).to(x.dtype), x)
    return torch.einsum("tec,ecd->td", combine, torch.relu(rows @ up) @ down)


def main() -> None:
    for tokens in map(int, sys.argv[1:] or (4096, 8192, 16384, 32768)):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        kind = dict(device="cuda", dtype=torch.bfloat16, requires_grad=True)
        parameters = [torch.randn(*shape, **kind) for shape in
                      ((WIDTH, EXPERTS), (EXPERTS, WIDTH, INNER), (EXPERTS, INNER, WIDTH))]
        x = torch.randn(tokens, WIDTH, **kind)
        try:
            layer(x, *parameters).sum().backward()
            print(f"one-hot einsum  {tokens:6d} tokens  {torch.cuda.max_memory_allocated() / 2**30:7.2f} GiB", flush=True)
        except torch.OutOfMemoryError:
            print(f"one-hot einsum  {tokens:6d} tokens  more than the card has", flush=True)
        del x, parameters


if __name__ == "__main__":
    main()
