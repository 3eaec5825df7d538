#!/usr/bin/env python3
"""How much longer work takes beside busy processes, and what the quiet machine pays for it, in alternation.

    python3 benchmarks/loaded/run_loaded.py [--rounds 5] [--cpus 0,1] [--busy 2] [--variant NAME=VALUE ...]

Every variant is an environment for the same program: "default" adds nothing, others set one variable (GOMP_SPINCOUNT,
OMP_WAIT_POLICY). Each round runs every workload with every variant, alone and beside --busy processes that never wait,
all on the same cores; the table has medians. docs/design/017-waiting-threads.md says what came of it.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def run(command, environment, folder):
    begin = time.monotonic()
    result = subprocess.run([str(word) for word in command], env=environment, cwd=folder, capture_output=True, text=True)
    seconds = time.monotonic() - begin
    if result.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} ended with status {result.returncode}:\n{result.stderr}")
    return seconds, result.stdout


def prepare(heddle, folder, environment):
    """The demo's text, tokenizer and a checkpoint of it."""
    text, tokenizer = folder / "runs/demo-text/text.jsonl", folder / "runs/demo-text/tokenizer.json"
    text.parent.mkdir(parents=True)
    (folder / "examples").symlink_to(ROOT / "examples")
    run([*heddle, "demo-text", "--bytes", 400000, "--out", text], environment, folder)
    run([*heddle, "tokenizer", "train", text, "--vocab", 512, "--special", "<|endoftext|>", "--out", tokenizer],
        environment, folder)
    run([*heddle, "train", "examples/01_tiny_cpu/run.toml", "--set", "train.steps=21", "--set",
         "optim.warmup_steps=10"], environment, folder)


def workloads(heddle, folder):
    """Name, and a function of the environment that gives seconds."""
    def whole(*command):
        return lambda environment: run([*heddle, *command], environment, folder)[0]

    def step(*command):
        return lambda environment: json.loads(
            run([*heddle, "bench", "train", *command, "--json"], environment, folder)[1])["step_seconds_median"]

    return {
        "eval of the demo, 16k tokens": whole("eval", "runs/demo", "--data", "runs/demo-text/text.jsonl",
                                              "--max-tokens", 16384),
        "40 steps of the demo": whole("train", "examples/01_tiny_cpu/run.toml", "--fresh", "--set", "train.steps=40",
                                      "--set", "optim.warmup_steps=10",
                                      "--set", "train.eval_every=0", "--set", "run.dir=runs/short"),
        "a step of llama-15m, 4 x 256": step("--model", "llama-15m", "--batch", 4, "--seq", 256, "--steps", 5),
        "a step of llama-110m, 4 x 256": step("--model", "llama-110m", "--batch", 4, "--seq", 256, "--steps", 2),
        "a step of llama-15m, 2 ranks": step("--model", "llama-15m", "--batch", 4, "--seq", 256, "--steps", 5,
                                             "--ranks", 2, "--set", "parallel.tp=2"),
    }


def environment_of(variant):
    environment = {name: value for name, value in os.environ.items()
                   if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    if variant != "default":
        name, value = variant.split("=", 1)
        environment[name] = value
    return environment


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--busy", type=int, default=2, help="processes that never wait")
    parser.add_argument("--cpus", default="", help="run everything on these cores, e.g. 0,1")
    parser.add_argument("--variant", action="append", help="default, or NAME=VALUE (repeatable)")
    parser.add_argument("--heddle", nargs="+", default=[str(ROOT / "build" / "heddle")], help="program to run")
    parser.add_argument("--only", default="", help="workloads whose name contains this")
    options = parser.parse_args()
    if options.cpus:
        os.sched_setaffinity(0, {int(cpu) for cpu in options.cpus.split(",")})
    variants = options.variant or ["default"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(options.heddle, folder, environment_of(variants[0]))
        chosen = {name: work for name, work in workloads(options.heddle, folder).items() if options.only in name}
        seconds = {(work, variant, busy): [] for work in chosen for variant in variants for busy in (0, options.busy)}
        for _ in range(options.rounds):
            for busy in (0, options.busy):
                others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)]
                try:
                    for work, measure in chosen.items():
                        for variant in variants:
                            seconds[work, variant, busy].append(measure(environment_of(variant)))
                finally:
                    for other in others:
                        other.kill()
                        other.wait()
    print(f"medians of {options.rounds}, {len(os.sched_getaffinity(0))} cores, beside {options.busy} busy processes\n")
    print("| work | environment | alone, s | of the first | beside, s | worst, s | beside / alone |")
    print("|---|---|---|---|---|---|---|")
    for work in chosen:
        first = statistics.median(seconds[work, variants[0], 0])
        for variant in variants:
            alone, beside = (seconds[work, variant, busy] for busy in (0, options.busy))
            a, b = statistics.median(alone), statistics.median(beside)
            print(f"| {work} | {variant} | {a:.3f} | {a / first:.3f} | {b:.3f} | {max(beside):.3f} | {b / a:.2f} |")


if __name__ == "__main__":
    main()
