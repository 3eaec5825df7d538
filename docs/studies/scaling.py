#!/usr/bin/env python3
"""One step from 8 to 10,000 GPUs: the plan that heddle plan takes for each, simulated. Prints the tables of scaling.md and draws
scaling-strong.svg and scaling-weak.svg.   python3 docs/studies/scaling.py build/heddle"""

import json
import os
import subprocess
import sys
import tempfile

from step_figures import stacks

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
SYSTEM = f"{ROOT}/configs/systems/h200-hgx-ndr.toml"
MODEL, SEQ = "llama3-8b", 4096
COUNTS = (8, 40, 200, 1000, 5000, 10000)
PARTS = (("computation", 0, ("computation",)), ("optimizer", 5, ("optimizer",)), ("tp", 2, ("tp",)),
         ("bubble", 3, ("bubble",)), ("pp messages", 4, ("pp_exposed",)), ("dp exchange", 1, ("dp_exposed", "ends_exposed", "vocabulary_exposed")))


def run(heddle, *words):
    return subprocess.run([heddle, *words], check=True, capture_output=True, text=True).stdout


def simulate(heddle, gpus, sequences):
    with tempfile.TemporaryDirectory() as folder:
        plan = f"{folder}/plan.toml"
        run(heddle, "plan", "--model", MODEL, "--system", SYSTEM, "--gpus", str(gpus), "--batch-tokens", str(sequences * SEQ),
            "--seq", str(SEQ), "--out", plan)
        return json.loads(run(heddle, "simulate", "step", "--model", MODEL, "--system", SYSTEM, "--plan", plan, "--json"))


def study(heddle, kind, title, sequences_of):
    print(f"\n## {kind}\n\n| GPUs | plan | step | MFU | " + " | ".join(name for name, _, _ in PARTS) + " | dp hidden |")
    print("|---" * (5 + len(PARTS)) + "|")
    groups, shares = [], {name: [] for name, _, _ in PARTS}
    for gpus in COUNTS:
        step = simulate(heddle, gpus, sequences_of(gpus))
        share = lambda names: 100 * sum(step["seconds"][name] for name in names) / step["step_seconds"]
        for name, _, keys in PARTS:
            shares[name].append(share(keys))
        print(f"| {gpus:,} | {step['plan']} | {step['step_seconds']:.3g} s | {100 * step['mfu']:.1f} % | "
              + " | ".join(f"{shares[name][-1]:.1f}" for name, _, _ in PARTS) + f" | {share(['dp_hidden']):.1f} |")
        groups.append((f"{gpus:,}\nGPUs", f"{step['step_seconds']:.3g} s"))
    stacks(f"{HERE}/scaling-{kind}.svg", title, groups, [(name, colour, shares[name]) for name, colour, _ in PARTS], 100, "%")


def main():
    heddle = sys.argv[1] if len(sys.argv) > 1 else "build/heddle"
    study(heddle, "strong", "Llama 3 8B on H200s, 5,000 sequences of 4,096 tokens per step: where the time goes", lambda gpus: 5000)
    study(heddle, "weak", "Llama 3 8B on H200s, 4 sequences of 4,096 tokens per GPU and step: where the time goes", lambda gpus: 4 * gpus)


main()
