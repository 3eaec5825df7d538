#!/usr/bin/env python3
"""Interleaving's gain: GPT-3 175B on 96 A100s, plain 1F1B against 4 chunks per rank. Prints the tables of interleaving.md and draws
interleaving.svg.   python3 docs/studies/interleaving.py build/heddle"""

import json
import os
import subprocess
import sys

from step_figures import lines

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
BATCHES = (12, 24, 36, 48, 60)
# Narayanan et al. 2021, figure 12, read off the plot: about 3 % either way.
MEASURED = {1: (82, 109, 122, 130, 135), 4: (119, 134, 141, 143, 146)}
HIDDEN, LAYERS, SEQ, VOCABULARY, GPUS = 12288, 96, 2048, 51200, 96


def simulate(heddle, batch, chunks):
    schedule = "interleaved" if chunks > 1 else "1f1b"
    said = subprocess.run([heddle, "simulate", "step", "--stack", "megatron", "--model", "gpt3-175b",
                           "--system", f"{ROOT}/configs/systems/a100-dgx-hdr.toml", "--gpus", str(GPUS), "--batch-tokens", str(batch * SEQ),
                           "--tp", "8", "--pp", "12", "--recompute", "block", "--sequence", "false", "--schedule", schedule,
                           "--chunks", str(chunks), "--json"], check=True, capture_output=True, text=True)
    return json.loads(said.stdout)


def tflops(batch, seconds):
    """As the paper counts: with the second forward of recomputation."""
    flops = 96 * batch * SEQ * LAYERS * HIDDEN**2 * (1 + SEQ / (6 * HIDDEN) + VOCABULARY / (16 * LAYERS * HIDDEN))
    return flops / GPUS / seconds / 1e12


def main():
    heddle = sys.argv[1] if len(sys.argv) > 1 else "build/heddle"
    rates = {1: [], 4: []}
    print("| sequences per step | 1F1B: TFLOP/s (measured) | 4 chunks: TFLOP/s (measured) | gain (measured) | bubble over ideal, (p-1)/(v m) | messages waited for |")
    print("|---|---|---|---|---|---|")
    for i, batch in enumerate(BATCHES):
        plain, chunked = simulate(heddle, batch, 1), simulate(heddle, batch, 4)
        for chunks, step in ((1, plain), (4, chunked)):
            rates[chunks].append(tflops(batch, step["step_seconds"]))
        gain, was = plain["step_seconds"] / chunked["step_seconds"] - 1, MEASURED[4][i] / MEASURED[1][i] - 1
        print(f"| {batch} | {rates[1][i]:.0f} ({MEASURED[1][i]}) | {rates[4][i]:.0f} ({MEASURED[4][i]}) | {100 * gain:+.0f} % ({100 * was:+.0f} %) "
              f"| {plain['bubble_over_ideal']:.3f}, {11 / batch:.3f}; {chunked['bubble_over_ideal']:.3f}, {11 / 4 / batch:.3f} "
              f"| {1e3 * plain['seconds']['pp_exposed']:.0f} ms; {1e3 * chunked['seconds']['pp_exposed']:.0f} ms |")
    print("\n| chunks per rank | step, s | bubble over ideal | messages waited for, ms | hidden, ms |\n|---|---|---|---|---|")
    for chunks in (1, 2, 4, 8):
        step = simulate(heddle, 24, chunks)
        times = step["seconds"]
        print(f"| {chunks} | {step['step_seconds']:.2f} | {step['bubble_over_ideal']:.3f} | {1e3 * times['pp_exposed']:.0f} | {1e3 * times['pp_hidden']:.0f} |")
    lines(f"{HERE}/interleaving.svg", "GPT-3 175B on 96 A100s (tp 8, pp 12): TFLOP/s per GPU", BATCHES,
          [("1F1B, simulated", 5, rates[1], False), ("measured", 5, MEASURED[1], True),
           ("4 chunks per rank, simulated", 0, rates[4], False), ("measured", 0, MEASURED[4], True)],
          160, "TFLOP/s", "sequences per step")


main()
