#!/usr/bin/env python3
"""Twelve shapes of a model, aligned and not: the measured step of each beside the one that a machine file predicts.

    run_shapes.py HEDDLE [--out FOLDER]            calibrates the GPU, then measures and predicts: four minutes on an H200
    run_shapes.py HEDDLE --system FILE             the same with a machine file that is there
    run_shapes.py HEDDLE --from results.json --system FILE      predicts measured steps anew, anywhere
    run_shapes.py HEDDLE --device cpu --system FILE             tries the script out on small shapes

Writes results.json (anew after every shape), table.md, and with calibration machine.toml and samples.json into FOLDER, and prints the table
of docs/studies/shapes.md. Exits with 1 when a step is missing, a prediction is off by more than 10 %, or orders two shapes the other way
round that are measured further apart than their noise (at least 2 %).
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
TINYLLAMA = json.load(open(f"{ROOT}/configs/models/tinyllama-1.1b.json"))


def heads(count, size):
    return {"num_attention_heads": count, "num_key_value_heads": count, "head_dim": size}


# A model, how it is trained, and what differs from it: one number each.
SETUPS = {
    "cuda": {
        "config": {**TINYLLAMA, **heads(32, 64), "num_hidden_layers": 8},
        "dtype": "bf16", "batch": 8, "seq": 2048,
        "shapes": {
            "MLP 5632 = 512 x 11": {},
            "MLP 5461, odd": {"intermediate_size": 5461},
            "heads: 26 of 80": heads(26, 80),
            "width 2056 = 8 x 257": {"hidden_size": 2056},
            "vocabulary 50304 = 128 x 393": {"vocab_size": 50304},
            "vocabulary 50257, odd": {"vocab_size": 50257},
            "MLP 5462 = 2 x 2731": {"intermediate_size": 5462},
            "MLP 5464 = 8 x 683": {"intermediate_size": 5464},
            "heads: 16 of 128": heads(16, 128),
            "heads: 21 of 96": heads(21, 96),
            "width 2000 = 16 x 125": {"hidden_size": 2000},
            "MLP 5504 = 128 x 43": {"intermediate_size": 5504},
        },
    },
    "cpu": {
        "config": {**TINYLLAMA, **heads(4, 64), "num_hidden_layers": 2, "hidden_size": 256, "intermediate_size": 704, "vocab_size": 512},
        "dtype": "f32", "batch": 2, "seq": 128,
        "shapes": {
            "MLP 704": {},
            "MLP 1409, odd": {"intermediate_size": 1409},
            "heads: 3 of 80": heads(3, 80),
            "width 264 = 8 x 33": {"hidden_size": 264},
        },
    },
}
CALL_SECONDS = 240  # longer, and a call hangs


def call(command):
    """Standard output, or None after a line that says what failed: the other shapes are measured all the same."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=CALL_SECONDS)
    except subprocess.TimeoutExpired:
        print(f"not done in {CALL_SECONDS} s: {' '.join(command)}", file=sys.stderr, flush=True)
        return None
    if done.returncode != 0:
        print(f"status {done.returncode}: {' '.join(command)}\n{done.stderr[-2000:]}", file=sys.stderr, flush=True)
        return None
    return done.stdout


def calibrate(arguments):
    system = f"{arguments.out}/machine.toml"
    begin = time.monotonic()
    done = call([arguments.heddle, "doctor", "--calibrate", "--device", arguments.device, "--out", system, "--samples",
                 f"{arguments.out}/samples.json"])
    if done is None:
        return None
    print(f"calibrated in {time.monotonic() - begin:.0f} s", flush=True)
    return system


def measure(arguments, setup, model):
    said = call([arguments.heddle, "bench", "train", "--model", model, "--device", arguments.device, "--dtype", setup["dtype"], "--batch",
                 str(setup["batch"]), "--seq", str(setup["seq"]), "--steps", str(arguments.steps), "--json"])
    if said is None:
        return {}
    result = json.loads(said)
    return {"measured_s": result["step_seconds_median"], "spread": result["step_seconds_spread"],
            "gemm_tflops": result["gemm_tflops_measured"], "peak_memory_bytes": result["peak_memory_bytes"]}


def predict(arguments, setup, model):
    job = ["--model", model, "--system", arguments.system, "--dtype", setup["dtype"], "--seq", str(setup["seq"]), "--batch-tokens",
           str(setup["batch"] * setup["seq"]), "--json"]
    step = call([arguments.heddle, "simulate", "step", "--microbatch", str(setup["batch"]), *job])
    plan = call([arguments.heddle, "plan", "--gpus", "1", *job])
    return {"predicted_s": step and json.loads(step)["step_seconds"], "advice": plan and json.loads(plan)["advice"]}


def is_whole(row):
    return row.get("measured_s") is not None and row.get("predicted_s") is not None


def error(row):
    return row["predicted_s"] / row["measured_s"] - 1


def figure(row, key):
    return f"{1e3 * row[key]:.1f} ms" if row.get(key) is not None else "-"


def line(row):
    off = f"{100 * error(row):+.1f} %" if is_whole(row) else "-"
    return f"| {row['shape']} | {figure(row, 'measured_s')} | {figure(row, 'predicted_s')} | {off} |"


def is_slower(a, b):
    """Whether a's measured step is longer than b's by more than noise."""
    noise = max(0.02, a.get("spread", 0), b.get("spread", 0))
    return a["measured_s"] > (1 + noise) * b["measured_s"]


def summary(rows, expected):
    whole = [row for row in rows if is_whole(row)]
    pairs = [(a, b) for a, b in itertools.permutations(whole, 2) if is_slower(a, b)]
    swapped = [(a["shape"], b["shape"]) for a, b in pairs if a["predicted_s"] < b["predicted_s"]]
    return {"shapes": len(whole), "expected": expected, "worst_error": max((abs(error(row)) for row in whole), default=None),
            "ordered_pairs": len(pairs), "swapped_pairs": swapped,
            "kendall_tau": 1 - 2 * len(swapped) / len(pairs) if pairs else None}


def holds(found):
    return found["shapes"] == found["expected"] and found["worst_error"] <= 0.1 and not found["swapped_pairs"]


HEAD = "| shape | measured step | predicted step | error |\n|---|---|---|---|"


def keep(folder, setup, rows):
    """What there is so far, so that an end from outside loses nothing."""
    found = summary(rows, len(setup["shapes"]))
    with open(f"{folder}/results.json.new", "w") as file:
        json.dump({"rows": rows, "summary": found}, file, indent=1)
    os.replace(f"{folder}/results.json.new", f"{folder}/results.json")
    with open(f"{folder}/table.md", "w") as file:
        file.write("\n".join([HEAD, *map(line, rows)]) + "\n")
    return found


def run(arguments):
    setup = SETUPS[arguments.device]
    known = {}
    if arguments.known:
        known = {row["shape"]: row for row in json.load(open(arguments.known))["rows"]}
    elif arguments.system is None:
        arguments.system = calibrate(arguments)
    rows = []
    print(HEAD)
    for name, change in setup["shapes"].items():
        with tempfile.TemporaryDirectory() as folder:
            model = f"{folder}/config.json"
            with open(model, "w") as file:
                json.dump({**setup["config"], **change}, file)
            row = known.get(name, {}) if arguments.known else measure(arguments, setup, model)
            predicted = predict(arguments, setup, model) if arguments.system else {}
        rows.append({"shape": name, **row, **predicted})
        print(line(rows[-1]), flush=True)
        found = keep(arguments.out, setup, rows)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("heddle")
    parser.add_argument("--system", help="machine file; measured first when absent")
    parser.add_argument("--from", dest="known", metavar="FILE", help="results.json whose steps are predicted, not measured")
    parser.add_argument("--device", default="cuda", choices=SETUPS)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--out", default="shapes", help="folder for what is written")
    arguments = parser.parse_args()
    if arguments.known and not arguments.system:
        parser.error("--from predicts: give the machine file with --system")
    os.makedirs(arguments.out, exist_ok=True)
    begin = time.monotonic()
    found = run(arguments)
    print(f"\n{json.dumps(found)}\nall in {time.monotonic() - begin:.0f} s")
    sys.exit(0 if holds(found) else 1)


if __name__ == "__main__":
    main()
