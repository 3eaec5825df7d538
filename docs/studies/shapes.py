#!/usr/bin/env python3
"""Aligned against unaligned shapes: the plan of the same model with one dimension changed. Prints the tables of shapes.md and
draws shapes.svg.   python3 docs/studies/shapes.py build/heddle"""

import json
import os
import subprocess
import sys
import tempfile

from step_figures import bars

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
LLAMA = json.load(open(f"{ROOT}/configs/models/llama3-8b.json"))
GPT = json.load(open(f"{ROOT}/configs/models/gpt3-175b.json"))


def ask(heddle, config, verb, *options):
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/config.json"
        json.dump(config, open(path, "w"))
        said = subprocess.run([heddle, *verb, "--model", path, "--seq", "2048", *options, "--json"], check=True, capture_output=True, text=True)
    return json.loads(said.stdout)


def plan(heddle, config):
    report = ask(heddle, config, ["plan"], "--system", f"{ROOT}/configs/systems/h200-hgx-ndr.toml", "--gpus", "8", "--batch-tokens", "1048576")
    return report["plans"][0], report["advice"]


def simulate(heddle, config, stack):
    return ask(heddle, config, ["simulate", "step"], "--system", f"{ROOT}/configs/systems/a100-dgx-hdr.toml", "--dp", "8", "--microbatch", "4",
               "--batch-tokens", "65536", "--stack", stack)


def widths(heddle):
    """Llama blocks of width 4096 with the SwiGLU widths that were measured on an H100, as TFLOP/s of the MLP's products."""
    measured = {10922: 272.7, 10944: 398.4, 10848: 395.6, 10880: 395.5, 10912: 395.2, 11008: 395.0}
    print("| MLP width | = | step | MFU | measured TFLOP/s of the product |\n|---|---|---|---|---|")
    rows = []
    for width, tflops in sorted(measured.items()):
        config = dict(LLAMA, intermediate_size=width, vocab_size=32000, num_key_value_heads=32, max_position_embeddings=4096)
        best, advice = plan(heddle, config)
        power = width & -width
        print(f"| {width} | {power} x {width // power} | {best['step_seconds']:.3f} s | {100 * best['mfu']:.1f} % | {tflops} |")
        rows.append((width, 100 * best["mfu"], advice))
    return rows


def heads(heddle):
    """The 2.7B shape that is copied everywhere (2560 wide, 32 heads of 80) and others of the same size."""
    print("\n| heads | of | step, attention stores its scores | MFU | step, it does not | MFU |\n|---|---|---|---|---|---|")
    rows = []
    for count in (32, 40, 20):
        config = dict(GPT, n_embd=2560, n_layer=32, n_head=count, vocab_size=50304)
        stored, fused = simulate(heddle, config, "megatron"), simulate(heddle, config, "heddle")
        print(f"| {count} | {2560 // count} | {stored['step_seconds']:.3f} s | {100 * stored['mfu']:.1f} % "
              f"| {fused['step_seconds']:.3f} s | {100 * fused['mfu']:.1f} % |")
        rows.append((count, 100 * stored["mfu"], plan(heddle, config)[1]))
    return rows


def vocabularies(heddle):
    print("\n| vocabulary | step | MFU |\n|---|---|---|")
    rows = []
    for size in (50257, 50304, 51200):
        config = dict(GPT, n_embd=2560, n_layer=32, n_head=20, vocab_size=size)
        best, advice = plan(heddle, config)
        print(f"| {size} | {best['step_seconds']:.3f} s | {100 * best['mfu']:.1f} % |")
        rows.append((size, 100 * best["mfu"], advice))
    return rows


def main():
    heddle = sys.argv[1] if len(sys.argv) > 1 else "build/heddle"
    all_rows = [("MLP width", widths(heddle)), ("heads", heads(heddle)), ("vocabulary", vocabularies(heddle))]
    print("\nadvice:")
    for _, rows in all_rows:
        for size, _, advice in rows:
            for line in advice:
                print(f"  {size}: {line}")
    groups = [f"{size}\n{name}" for name, rows in all_rows for size, *_ in rows]
    values = [mfu for _, rows in all_rows for _, mfu, _ in rows]
    bars(f"{HERE}/shapes.svg", "MFU by one dimension of the model", groups, [("predicted", 0, values, None)], 80)


main()
