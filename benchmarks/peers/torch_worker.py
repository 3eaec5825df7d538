"""One PyTorch contender: builds and warms up a model, then times steps on request.

Lives as long as the comparison, so that compilation happens once and outside the timing. Between requests it blocks
on its standard input and uses no CPU. Talks JSON, one object per line: {"steps": N} in, a result out.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, Callable

import torch

from torch_models import SHAPES, Decoder

CLIP_NORM = 1.0


def note(text: str) -> None:
    print(f"    {text}", file=sys.stderr, flush=True)


def make_optimizer(model: torch.nn.Module, **kind: Any) -> torch.optim.Optimizer:
    parameters = list(model.parameters())
    groups = [dict(params=[p for p in parameters if p.dim() >= 2], weight_decay=0.1),
              dict(params=[p for p in parameters if p.dim() < 2], weight_decay=0.0)]
    return torch.optim.AdamW(groups, lr=1e-4, betas=(0.9, 0.95), **kind)


def fastest_optimizer(model: torch.nn.Module) -> tuple[str, torch.optim.Optimizer]:
    """Needs gradients in place. Times the second step of each kind, because the first one allocates the moments."""
    synchronize = torch.cuda.synchronize if next(model.parameters()).is_cuda else lambda: None
    kinds = {"fused": dict(fused=True), "foreach": dict(foreach=True)}
    seconds: dict[str, float] = {}
    for name, kind in kinds.items():
        try:
            optimizer = make_optimizer(model, **kind)
            optimizer.step()
            synchronize()
            start = time.perf_counter()
            optimizer.step()
            synchronize()
            seconds[name] = time.perf_counter() - start
        except RuntimeError as error:
            note(f"AdamW {name} does not work here: {error}")
    best = min(seconds, key=seconds.__getitem__)
    note("AdamW step: " + ", ".join(f"{name} {value:.3f} s" for name, value in seconds.items()) + f"; takes {best}")
    return best, make_optimizer(model, **kinds[best])


def peak_bytes(device: str) -> int:
    """Of the process, or on a GPU of the allocator's pool."""
    if device == "cuda":
        return torch.cuda.max_memory_reserved()
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["VmHWM"].split()[0]) * 1024


def reset_peak_rss() -> None:
    """So that the peak is that of training, not of the compiler; where the kernel refuses, the compiler counts too."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError as error:
        note(f"peak memory includes compilation: {error}")


def prepare(options: argparse.Namespace) -> tuple[Callable[[], None], dict[str, Any]]:
    shape = SHAPES[options.device][options.model]
    torch.manual_seed(0)
    model = Decoder(shape).to(options.device, torch.bfloat16 if options.weights == "bf16" else torch.float32)
    compiled = model if options.eager else torch.compile(model, fullgraph=True, dynamic=False,
                                                         mode=options.compile_mode)
    # On a GPU matrices are multiplied in bf16 in any case.
    has_autocast = options.device == "cuda" and options.weights == "f32"

    def loss_of(inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        with torch.autocast(options.device, torch.bfloat16, enabled=has_autocast):
            return compiled(inputs, labels)

    tokens = torch.randint(shape.vocabulary, (shape.batch, shape.sequence + 1), device=options.device)
    inputs, labels = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    start = time.perf_counter()
    loss_of(inputs, labels).backward()
    how = "" if options.eager else " with compilation"
    note(f"{options.model}: first pass {time.perf_counter() - start:.1f} s{how}")
    kind, optimizer = fastest_optimizer(model)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss_of(inputs, labels).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM, foreach=True)
        optimizer.step()
        if options.device == "cuda":
            torch.cuda.synchronize()

    for _ in range(options.warmup):
        step()
    if options.device == "cuda":  # what only compilation and trials took is the other contender's
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    facts = dict(torch=torch.__version__, threads=torch.get_num_threads(), optimizer=kind, weights=options.weights,
                 batch=shape.batch, sequence=shape.sequence, parameters=sum(p.numel() for p in model.parameters()))
    return step, facts


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=SHAPES, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--weights", choices=["f32", "bf16"], default="f32")
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--compile-mode", default="default")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--warmup", type=int, required=True)
    options = parser.parse_args()

    # Libraries may print to standard output; it belongs to the protocol, so they get standard error instead.
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    torch.set_num_threads(options.threads)
    step, facts = prepare(options)
    if options.device == "cpu":
        reset_peak_rss()
    print(json.dumps(facts), file=replies, flush=True)
    for line in sys.stdin:
        step()  # not timed: the other contender has just had the caches
        seconds = []
        for _ in range(json.loads(line)["steps"]):
            start = time.perf_counter()
            step()
            seconds.append(time.perf_counter() - start)
        print(json.dumps(dict(step_seconds=seconds, peak_bytes=peak_bytes(options.device))), file=replies, flush=True)


if __name__ == "__main__":
    main()
