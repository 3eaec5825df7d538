#!/usr/bin/env python3
"""Twelve shapes of a model, aligned and not: the step that a calibrated machine file predicts beside the measured one.

    run_shapes.py HEDDLE [--system FILE] [--device cuda] [--steps N] [--out results.json]

Without --system the machine is calibrated first (`heddle doctor --calibrate`), into machine.toml of the current folder. Prints the table
of docs/studies/shapes.md. Exits with 1 when a prediction is off by more than 10 %, or orders two shapes that are measured more than 2 %
apart the other way round.
"""
import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LLAMA = json.load(open(f"{ROOT}/configs/models/tinyllama-1.1b.json"))
LLAMA |= {"num_hidden_layers": 8, "num_key_value_heads": 32}

# What differs from a Llama 2048 wide, of 32 heads of 64, 5632 in its MLP and 32000 words.
SHAPES = {
    "MLP 5632 = 512 x 11": {},
    "MLP 5504 = 128 x 43": {"intermediate_size": 5504},
    "MLP 5464 = 8 x 683": {"intermediate_size": 5464},
    "MLP 5462 = 2 x 2731": {"intermediate_size": 5462},
    "MLP 5461, odd": {"intermediate_size": 5461},
    "vocabulary 50304 = 128 x 393": {"vocab_size": 50304},
    "vocabulary 50257, odd": {"vocab_size": 50257},
    "heads: 16 of 128": {"num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 128},
    "heads: 26 of 80": {"num_attention_heads": 26, "num_key_value_heads": 26, "head_dim": 80},
    "width 2560": {"hidden_size": 2560, "num_attention_heads": 40, "num_key_value_heads": 40},
    "width 2056 = 8 x 257": {"hidden_size": 2056},
    "width 2050 = 2 x 1025": {"hidden_size": 2050},
}


def call(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    return done.stdout


def measure(arguments, system, change):
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/config.json"
        json.dump(LLAMA | change, open(path, "w"))
        result = json.loads(call([
            arguments.heddle, "bench", "train", "--model", path, "--device", arguments.device, "--dtype",
            "bf16" if arguments.device == "cuda" else "f32", "--batch", str(arguments.batch), "--seq", str(arguments.seq), "--steps",
            str(arguments.steps), "--system", system, "--json"]))
    return result["step_seconds_median"], result["predicted_step_seconds"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("heddle")
    parser.add_argument("--system")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seq", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--out")
    arguments = parser.parse_args()
    system = arguments.system
    if system is None:
        system = "machine.toml"
        begin = time.monotonic()
        call([arguments.heddle, "doctor", "--calibrate", "--device", arguments.device, "--out", system])
        print(f"calibrated in {time.monotonic() - begin:.0f} s\n", flush=True)
    rows = []
    print("| shape | measured step | predicted step | error |\n|---|---|---|---|")
    for name, change in SHAPES.items():
        measured, predicted = measure(arguments, system, change)
        rows.append({"shape": name, "measured_s": measured, "predicted_s": predicted})
        print(f"| {name} | {1e3 * measured:.1f} ms | {1e3 * predicted:.1f} ms | {100 * (predicted / measured - 1):+.1f} % |", flush=True)
    worst = max(abs(row["predicted_s"] / row["measured_s"] - 1) for row in rows)
    swapped = [(a["shape"], b["shape"]) for a, b in itertools.permutations(rows, 2)
               if a["measured_s"] > 1.02 * b["measured_s"] and a["predicted_s"] < b["predicted_s"]]
    print(f"\nworst error {100 * worst:.1f} %; pairs in the other order: {swapped or 'none'}")
    if arguments.out:
        json.dump(rows, open(arguments.out, "w"), indent=1)
    sys.exit(0 if worst <= 0.1 and not swapped else 1)


if __name__ == "__main__":
    main()
