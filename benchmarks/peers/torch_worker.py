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
    kinds = {"fused": dict(fused=True), "foreach": dict(foreach=True)}
    seconds: dict[str, float] = {}
    for name, kind in kinds.items():
        try:
            optimizer = make_optimizer(model, **kind)
            optimizer.step()
            start = time.perf_counter()
            optimizer.step()
            seconds[name] = time.perf_counter() - start
        except RuntimeError as error:
            note(f"AdamW {name} does not work here: {error}")
    best = min(seconds, key=seconds.__getitem__)
    note("AdamW step: " + ", ".join(f"{name} {value:.3f} s" for name, value in seconds.items()) + f"; takes {best}")
    return best, make_optimizer(model, **kinds[best])


def peak_rss_bytes() -> int:
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["VmHWM"].split()[0]) * 1024


def reset_peak_rss() -> None:
    """So that the peak is that of training, not of the compiler; where the kernel refuses, the compiler counts too."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError as error:
        note(f"peak memory includes compilation: {error}")


def prepare(name: str, eager: bool, compile_mode: str, warmup: int) -> tuple[Callable[[], None], dict[str, Any]]:
    shape = SHAPES[name]
    torch.manual_seed(0)
    model = Decoder(shape)
    loss_of = model if eager else torch.compile(model, fullgraph=True, dynamic=False, mode=compile_mode)
    tokens = torch.randint(shape.vocabulary, (shape.batch, shape.sequence + 1))
    inputs, labels = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    start = time.perf_counter()
    loss_of(inputs, labels).backward()
    note(f"{name}: first pass {time.perf_counter() - start:.1f} s{'' if eager else ' with compilation'}")
    kind, optimizer = fastest_optimizer(model)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss_of(inputs, labels).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM, foreach=True)
        optimizer.step()

    for _ in range(warmup):
        step()
    facts = dict(torch=torch.__version__, threads=torch.get_num_threads(), optimizer=kind, batch=shape.batch,
                 sequence=shape.sequence, parameters=sum(p.numel() for p in model.parameters()))
    return step, facts


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=SHAPES, required=True)
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--compile-mode", default="default")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--warmup", type=int, required=True)
    options = parser.parse_args()

    # Libraries may print to standard output; it belongs to the protocol, so they get standard error instead.
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    torch.set_num_threads(options.threads)
    step, facts = prepare(options.model, options.eager, options.compile_mode, options.warmup)
    reset_peak_rss()
    print(json.dumps(facts), file=replies, flush=True)
    for line in sys.stdin:
        step()  # not timed: the other contender has just had the caches
        seconds = []
        for _ in range(json.loads(line)["steps"]):
            start = time.perf_counter()
            step()
            seconds.append(time.perf_counter() - start)
        print(json.dumps(dict(step_seconds=seconds, peak_rss_bytes=peak_rss_bytes())), file=replies, flush=True)


if __name__ == "__main__":
    main()
