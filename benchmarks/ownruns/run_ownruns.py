#!/usr/bin/env python3
"""Predicted against measured: steps of six meshes of two models on the machine this runs on.

    python3 benchmarks/ownruns/run_ownruns.py [--rounds 2] [--steps 3]

Every round measures the machine anew before each model (heddle doctor --calibrate) and then trains every mesh for a few steps
(heddle bench train --system), which prints the prediction made from that file beside what it measured. The table goes to
benchmarks/results.

A shared machine does not run equally fast for minutes on end. Calibration and every run time the same large matrix product,
so the prediction is also given as scaled by how fast that ran meanwhile. The plain prediction is judged: one product says
little about what else the machine does.
"""

import argparse
import datetime
import json
import os
import platform
import re
import statistics
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))
from heddle_calls import run  # noqa: E402

# name, ranks, micro-batches of each replica, settings of the section parallel
MESHES = (
    ("one rank", 1, 2, ()),
    ("dp 2", 2, 1, ("dp=2",)),
    ("dp 2, ZeRO 3", 2, 1, ("dp=2", "zero=3")),
    ("tp 2, sequence", 2, 2, ("tp=2", "sequence=true")),
    ("pp 2, 1f1b", 2, 4, ("pp=2", "schedule=1f1b")),
    ("pp 2, zb-v", 2, 4, ("pp=2", "schedule=zb-v")),
)
# name, sequences a step, tokens a sequence
MODELS = (("llama-15m", 8, 256), ("llama-110m", 4, 128))
TIME_BAR, MEMORY_BAR = 10.0, 3.0


def calibrate(heddle, file):
    """Writes the machine file; the rate of the large product of all ranks together, by number of ranks."""
    run([heddle, "doctor", "--calibrate", "--ranks", 2, "--out", file])
    line = re.compile(r"# (\d+) x \d+ threads: a large product at ([\d.e+]+) GFLOP/s a rank")
    return {int(ranks): int(ranks) * float(rate) for ranks, rate in line.findall(file.read_text())}


def measure(heddle, file, model, mesh, steps):
    name, sequences, tokens = model
    _, ranks, microbatches, settings = mesh
    command = [heddle, "bench", "train", "--model", name, "--batch", sequences, "--seq", tokens, "--microbatches",
               microbatches, "--steps", steps, "--ranks", ranks, "--system", file, "--json"]
    return json.loads(run(command + [word for key in settings for word in ("--set", f"parallel.{key}")]))


def one_round(options, samples):
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "machine.toml"
        for model in MODELS:
            if options.models and model[0] not in options.models:
                continue
            product = calibrate(options.heddle, file)
            print(f"calibrated: {product} GFLOP/s in the large product", file=sys.stderr)
            if options.keep:
                options.keep.write_text(file.read_text())
            for mesh in MESHES:
                found = measure(options.heddle, file, model, mesh, options.steps)
                seconds, predicted = found["step_seconds_median"], found["predicted_step_seconds"]
                speed = found["gemm_tflops_measured"] * 1e3 / product[mesh[1]]
                sample = {"measured": seconds, "raw": predicted, "scaled": predicted / speed, "speed": speed,
                          "memory": found["peak_memory_bytes"], "predicted_memory": found["predicted_memory_bytes"],
                          "spread": found["step_seconds_spread"]}
                samples.setdefault((model[0], mesh[0]), []).append(sample)
                print(f"{model[0]}, {mesh[0]}: {seconds:.3f} s, predicted {predicted:.3f} s"
                      f" ({percent(predicted, seconds):+.1f} %), at {speed:.2f} of the calibrated speed"
                      f" {predicted / speed:.3f} s, spread {100 * sample['spread']:.0f} %", file=sys.stderr)


def percent(predicted, measured):
    return 100 * (predicted / measured - 1)


def median(samples, key):
    return statistics.median(sample[key] for sample in samples)


def cpu_model():
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def table(samples, options, date):
    rounds = max(len(found) for found in samples.values())
    lines = [f"# Predicted and measured steps on one machine, {date}", "",
             f"{cpu_model()}, cores: {os.cpu_count()}. float32; ranks are threads of one program. Rounds:"
             f" {rounds}, each with calibrations of its own; timed steps a run: {options.steps}. Medians over rounds.",
             f"The plain prediction is judged: at most {TIME_BAR:.0f} % from the measured step; memory at most"
             f" {MEMORY_BAR:.0f} %.", "",
             "| model | mesh | step, s | predicted, s | error | scaled to the speed meanwhile | memory, MiB | predicted, MiB"
             " | error | missed |", "|---|---|---|---|---|---|---|---|---|---|"]
    for (model, mesh), found in samples.items():
        # Errors round by round: what is predicted and what is measured belong together.
        error = statistics.median(percent(sample["raw"], sample["measured"]) for sample in found)
        scaled = statistics.median(percent(sample["scaled"], sample["measured"]) for sample in found)
        memory = statistics.median(percent(sample["predicted_memory"], sample["memory"]) for sample in found)
        missed = ["time"] * (abs(error) > TIME_BAR) + ["memory"] * (abs(memory) > MEMORY_BAR)
        lines.append(f"| {model} | {mesh} | {median(found, 'measured'):.3f} | {median(found, 'raw'):.3f} | {error:+.1f} % |"
                     f" {median(found, 'scaled'):.3f} ({scaled:+.1f} %) | {median(found, 'memory') / 2**20:.0f} |"
                     f" {median(found, 'predicted_memory') / 2**20:.0f} | {memory:+.1f} % | {', '.join(missed)} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=3, help="timed steps a run")
    parser.add_argument("--models", nargs="*", help="only these")
    parser.add_argument("--heddle", type=Path, default=ROOT / "build" / "heddle")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--samples", type=Path, help="JSON file to which every round's samples are added at its end")
    parser.add_argument("--keep", type=Path, help="where the last machine file is left")
    options = parser.parse_args()
    samples = {}
    if options.samples and options.samples.exists():
        samples = {tuple(key.split("|")): found for key, found in json.loads(options.samples.read_text()).items()}
    for _ in range(options.rounds):
        one_round(options, samples)
        if options.samples:
            options.samples.write_text(json.dumps({"|".join(key): found for key, found in samples.items()}))
    date = datetime.date.today().isoformat()
    text = table(samples, options, date)
    (options.results / f"ownruns-{date}.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
