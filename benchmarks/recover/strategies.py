#!/usr/bin/env python3
"""How long training takes when stages of a pipeline are lost: checkpoints, redundant computation, CheckFree and CheckFree+ (arXiv 2506.15461).

    python3 benchmarks/recover/strategies.py --build build --text tinyshakespeare.txt --out runs/strategies

A small model is trained by the program's own trainer until its held-out loss is the one that an undisturbed run has behind --target of --steps steps. Its
stages lie on ranks of their own, embedding and head on one more, which is never lost. Every other stage is lost with a fixed probability in each iteration: those of
the paper's medium model for 5, 10 and 16 % an hour, once the first checkpoint is there. That model has 6 stages in the paper and 12 in the authors' program as it is
since March 2026, with the same probabilities. All strategies have the same losses. Ranks are threads (benchmarks/recover/losses_bench.cpp); somebody new takes the place
of each that is lost.

Time is iterations, those taken again counted again, times what the paper measured for an iteration. Redundant computation loses nothing, so its iterations
are those of the undisturbed run. A run that has ended is not repeated. Written are OUT/table.md and OUT/results.json; the exit status is 1 where the order of
the paper at 5 and 10 % (CheckFree+ < CheckFree < redundant < checkpoints) does not hold. Only the standard library is needed.
"""

import argparse
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))
from heddle_calls import make_tokens  # noqa: E402

BLOCKS, VOCAB, SEQ, MICROBATCHES, SEQUENCES = 12, 512, 64, 4, 2
CHECKPOINT_EVERY, EVAL_EVERY, SEED_OF_LOSSES = 100, 10, 42
# Of the medium model: losses of a stage in an iteration, and seconds of an iteration.
RATES = {5: 0.0009, 10: 0.002, 16: 0.004}
SECONDS = {"checkpoint": {5: 91.35, 10: 91.35, 16: 92.14}, "redundant": dict.fromkeys(RATES, 151.04),
           "checkfree": {5: 91.32, 10: 91.32, 16: 92.12}, "checkfree+": {5: 91.32, 10: 91.32, 16: 92.12}}
PUBLISHED_HOURS = {"checkpoint": {5: 558.2, 10: 621.7, 16: 634.4}, "redundant": dict.fromkeys(RATES, 419.6),
                   "checkfree": {5: 367.8, 10: 405.9, 16: 563.0}, "checkfree+": {5: 355.1, 10: 367.8, 16: 460.6}}
SWAP = ["parallel.routes=\"swap\""]
SETTINGS = {"checkpoint": [], "checkfree": ["recover.stages=\"checkfree\""], "checkfree+": ["recover.stages=\"checkfree+\"", *SWAP]}
ORDER = ("checkfree+", "checkfree", "redundant", "checkpoint")
NAMES = {"checkfree+": "CheckFree+", "checkfree": "CheckFree", "redundant": "redundant", "checkpoint": "checkpoints"}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build", help="folder with heddle and benchmarks/losses_bench")
    parser.add_argument("--out", type=Path, required=True, help="folder of the study")
    parser.add_argument("--text", type=Path, required=True, help="a text file")
    parser.add_argument("--stages", type=int, default=6, choices=(3, 4, 6, 12), help="of the 12 blocks")
    parser.add_argument("--steps", type=int, default=1000, help="of the undisturbed run")
    parser.add_argument("--target", type=float, default=0.8, help="the share of them behind which its loss is the target")
    parser.add_argument("--most", type=float, default=4, help="a run ends after so many times the undisturbed steps")
    parser.add_argument("--width", type=int, default=32, help="of the model")
    parser.add_argument("--lr", type=float, default=2e-3, help="learning rate, behind a warm-up")
    parser.add_argument("--seeds", default="1,2", help="of weights, samples and losses, with commas between them")
    parser.add_argument("--rates", default="5,10,16", help="of losses, in % an hour")
    return parser.parse_args()


def prepare(options):
    """Tokenizer, tokens and config, made once for all runs."""
    folder = options.out / "data"
    make_tokens(options.build / "heddle", options.text, VOCAB, folder)
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": options.width, "intermediate_size": options.width * 8 // 3,
              "num_hidden_layers": BLOCKS, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": VOCAB, "max_position_embeddings": SEQ,
              "rms_norm_eps": 1e-5, "hidden_act": "silu", "initializer_range": 0.02, "tie_word_embeddings": False}
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    (folder / "empty.toml").write_text("")  # everything is set from outside
    return folder


def planned_losses(stages, rate, seed, iterations):
    """By the number of finished iterations: ranks that are lost. Rank 0 never is, nor anybody before there is a checkpoint."""
    draw = random.Random(SEED_OF_LOSSES * 1000 + seed * 100 + rate)
    losses = {}
    for iteration in range(CHECKPOINT_EVERY + 5, iterations):
        lost = [stage + 1 for stage in range(stages) if draw.random() < RATES[rate]]
        if lost:
            losses[iteration] = lost
    return losses


def held_out(folder):
    """Step and loss of every evaluation so far."""
    file = folder / "metrics.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    found, seconds = [], []
    for line in lines:
        try:
            metrics = json.loads(line)
        except ValueError:
            break  # is being written
        if "eval_loss" in metrics:
            found.append((metrics["step"], metrics["eval_loss"]))
        if "step_seconds" in metrics:
            seconds.append(metrics["step_seconds"])
    return found, seconds


def step_of(evaluations, target):
    """Where the loss first falls to the target, between two evaluations; None: nowhere."""
    for (before, high), (step, low) in zip(evaluations, evaluations[1:]):
        if low <= target < high:
            return before + (step - before) * (high - target) / (high - low)
    return None


def train(options, data, name, losses, settings, seed, target=None):
    """Trains until the target, or all steps; what was seen, also of an earlier call."""
    folder, said = options.out / name, options.out / f"{name}.json"
    if said.exists():
        return json.loads(said.read_text())
    shutil.rmtree(folder, ignore_errors=True)
    steps = options.steps if target is None else int(options.most * options.steps)
    common = {
        "model.config": data / "config.json", "data.train": data / "text.tokens", "data.tokenizer": data / "tokenizer.json", "data.seq_len": SEQ,
        "data.documents": "ignore", "data.holdout": 0.05, "train.steps": steps, "train.microbatch": SEQUENCES, "train.eval_tokens": 16384,
        "train.tokens_per_step": SEQUENCES * SEQ * MICROBATCHES, "train.eval_every": EVAL_EVERY, "optim.lr": options.lr, "optim.schedule": "constant",
        "optim.beta2": 0.999, "optim.weight_decay": 0, "optim.warmup_steps": 20, "checkpoint.every": CHECKPOINT_EVERY, "checkpoint.keep": 2,
        "run.dir": folder, "run.seed": seed, "run.threads": 1, "parallel.pp": options.stages + 1, "parallel.schedule": "routes", "parallel.zero": 0,
        "recover.elastic": "true", "observe.report": "false",
    }
    text = " ".join(f"{iteration}:{','.join(map(str, ranks))}" for iteration, ranks in losses.items())
    words = [options.build / "benchmarks" / "losses_bench", data / "empty.toml", options.stages + 1, text]
    words += [f"{key}={value}" for key, value in common.items()] + settings
    began, load = time.monotonic(), os.getloadavg()[0]
    errors = options.out / f"{name}.log"
    with errors.open("w") as file:
        process = subprocess.Popen([str(word) for word in words], stdout=subprocess.DEVNULL, stderr=file)
        while process.poll() is None:
            time.sleep(1)
            if target is not None and step_of(held_out(folder)[0], target) is not None:
                process.kill()
    if process.returncode > 0:
        sys.exit(f"{name}: status {process.returncode}\n{errors.read_text()[-2000:]}")
    evaluations, seconds = held_out(folder)
    log = (folder / "log.txt").read_text()
    starts = starts_in(log)
    result = {"evaluations": evaluations, "starts": starts, "losses": {str(at): losses[at] for at in list(losses)[: len(starts)]},
              "step_seconds": statistics.median(seconds), "seconds": time.monotonic() - began, "load": [load, os.getloadavg()[0]]}
    said.write_text(json.dumps(result))
    print(f"{name}: {result['seconds']:.0f} s, {len(starts)} losses, load {load:.0f} to {os.getloadavg()[0]:.0f}", flush=True)
    return result


def starts_in(log):
    """Of every epoch but the first: behind which step of the run it went on, and whether that is one of a checkpoint."""
    found = re.findall(r"lost: .*(going on behind step|to the checkpoint of step) (\d+)", log)
    return [(int(step), how.startswith("to the checkpoint")) for how, step in found]


def iterations_to(result, target):
    """How many it took until the loss was first reached: steps that were taken again count again."""
    step = step_of(result["evaluations"], target)
    if step is None:
        return float("inf")
    begins = [0, *(int(at) for at in result["losses"])]
    behind = [0, *(first for first, _ in result["starts"])]
    for epoch, (at, first) in enumerate(zip(begins, behind)):
        end = begins[epoch + 1] if epoch + 1 < len(begins) else float("inf")
        if first <= step <= first + end - at:
            return at + step - first
    return float("inf")


def with_checkpoints(stages, steps, rate, seed):
    """Iterations until so many steps are done, where every loss leads back to the newest checkpoint: what is trained does not matter for that."""
    losses, done, iterations = planned_losses(stages, rate, seed, int(50 * steps)), 0, 0
    while done < steps and iterations < 50 * steps:
        done = done // CHECKPOINT_EVERY * CHECKPOINT_EVERY if iterations in losses else done
        done, iterations = done + 1, iterations + 1
    return iterations


def expected(stages, steps, rates, plans=300):
    """What other draws of losses would have made of checkpoints."""
    text = f"Checkpoints with {plans} other plans of losses, {steps:.0f} steps:"
    for rate in rates:
        counts = sorted(with_checkpoints(stages, steps, rate, seed) for seed in range(1000, 1000 + plans))
        slower = sum(count * SECONDS["checkpoint"][rate] > steps * SECONDS["redundant"][rate] for count in counts)
        text += f" {rate} %: {counts[plans // 2] / steps:.2f} times the steps in the median, slower than redundant computation in {100 * slower / plans:.0f} %;"
    return text[:-1] + ".\n"


def table(results, rates, seeds):
    """As Markdown, and whether the order of the paper holds at 5 and 10 %."""
    text = "| losses | strategy | iterations to the target | hours | beside redundant | published | losses, of them back to a checkpoint |\n"
    text += "|---|---|---|---|---|---|---|\n"
    holds = True
    for rate in rates:
        runs = {strategy: [results[f"{seed}"][strategy][str(rate)] for seed in seeds] for strategy in ORDER}
        hours = {strategy: statistics.mean(run["iterations"] for run in runs[strategy]) * SECONDS[strategy][rate] / 3600 for strategy in ORDER}
        for strategy in ORDER:
            counts = ", ".join(f"{run['iterations']:.0f}" for run in runs[strategy])
            events = "; ".join(f"{run['lost']}, {run['back']}" for run in runs[strategy])
            text += f"| {rate} % | {NAMES[strategy]} | {counts} | {hours[strategy]:.1f} | {hours[strategy] / hours['redundant']:.2f} "
            text += f"| {PUBLISHED_HOURS[strategy][rate] / PUBLISHED_HOURS['redundant'][rate]:.2f} | {events} |\n"
        holds = holds and (rate > 10 or all(hours[a] < hours[b] for a, b in zip(ORDER, ORDER[1:])))
    return text + f"\nCheckFree+ < CheckFree < redundant < checkpoints at 5 and 10 %: {'holds' if holds else 'does not hold'}\n", holds


def main():
    options = arguments()
    data = prepare(options)
    rates, seeds = [int(rate) for rate in options.rates.split(",")], [int(seed) for seed in options.seeds.split(",")]
    results = {}
    for seed in seeds:
        undisturbed = train(options, data, f"undisturbed-{seed}", {}, [], seed)
        target = dict(map(tuple, undisturbed["evaluations"]))[int(options.target * options.steps) // EVAL_EVERY * EVAL_EVERY]
        alone = iterations_to(undisturbed, target)
        swapped = train(options, data, f"swapped-{seed}", {}, SWAP, seed, target)
        found = results.setdefault(f"{seed}", {"target": target, "undisturbed": undisturbed, "swapped": swapped})
        found["alone"], found["swapped_alone"] = alone, iterations_to(swapped, target)
        print(f"seed {seed}: target {target:.4f}, {alone:.0f} iterations undisturbed, {found['swapped_alone']:.0f} with swapped pairs", flush=True)
        for rate in rates:
            losses = planned_losses(options.stages, rate, seed, 10 * options.steps)
            for strategy in ORDER:
                run = {"losses": losses, "starts": [(at, False) for at in losses], "iterations": alone}
                if strategy != "redundant":
                    run = train(options, data, f"{strategy}-{rate}-{seed}", losses, SETTINGS[strategy], seed, target)
                    run["iterations"] = iterations_to(run, target)
                before = [is_back for at, (_, is_back) in zip(run["losses"], run["starts"]) if int(at) < run["iterations"]]
                found.setdefault(strategy, {})[str(rate)] = {**run, "lost": len(before), "back": sum(before)}
    text, holds = table(results, rates, seeds)
    text += "\n" + expected(options.stages, statistics.mean(results[f"{seed}"]["alone"] for seed in seeds), rates)
    (options.out / "table.md").write_text(text)
    (options.out / "results.json").write_text(json.dumps(results, indent=1))
    print(text)
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
