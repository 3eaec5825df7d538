#!/usr/bin/env python3
"""How much of one process's training speed two ranks on the same cores keep, mesh by mesh, in alternation.

    python3 benchmarks/ranks/run_ranks.py [--rounds 5] [--steps 2]

Every mesh trains llama-110m with the same micro-batches a step as the one process it is compared with, and both use
all cores: one process with a thread per core, or ranks that share them. The table goes to benchmarks/results.
"""

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
MODEL, SEQUENCES, SEQUENCE = "llama-110m", 8, 256
# name, micro-batches of each replica, settings of the section parallel, the bar; behind the process it is compared with
GROUPS = (
    (("one process, 2 micro-batches", 2, None, None),
     ("dp 2", 1, ["dp=2"], 0.90),
     ("tp 2", 2, ["tp=2"], 0.90)),
    (("one process, 8 micro-batches", 8, None, None),
     ("pp 2, 1f1b", 8, ["pp=2", "schedule=1f1b"], 0.82),
     ("pp 2, zb-v", 8, ["pp=2", "schedule=zb-v"], 0.90)),
)


def measure(heddle, contender, steps):
    name, microbatches, settings, _ = contender
    command = [heddle, "bench", "train", "--model", MODEL, "--batch", str(SEQUENCES), "--seq", str(SEQUENCE),
               "--microbatches", str(microbatches), "--steps", str(steps), "--json"]
    if settings is not None:
        command += ["--ranks", "2"] + [word for key in settings for word in ("--set", f"parallel.{key}")]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"{name}: {' '.join(map(str, command))} ended with status {result.returncode}:\n{result.stderr}")
    return json.loads(result.stdout)["tokens_per_second"]


def cpu_model():
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=2, help="timed steps per contender and round")
    parser.add_argument("--heddle", type=Path, default=ROOT / "build" / "heddle")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results")
    options = parser.parse_args()
    contenders = [contender for group in GROUPS for contender in group]
    speeds = {contender[0]: [] for contender in contenders}
    for number in range(options.rounds):
        # The order turns every round, so that a machine growing slower or faster favours nobody.
        for contender in contenders if number % 2 == 0 else contenders[::-1]:
            speed = measure(options.heddle, contender, options.steps)
            speeds[contender[0]].append(speed)
            print(f"round {number + 1}/{options.rounds} {contender[0]}: {speed:.1f} tokens/s", file=sys.stderr)
    date = datetime.date.today().isoformat()
    lines = [f"# Two ranks on the cores of one process, {date}", "",
             f"{cpu_model()}, cores: {os.cpu_count()}. {MODEL}, float32, {SEQUENCES * SEQUENCE} tokens a step; ranks are threads"
             f" of one program. Alternating rounds: {options.rounds}, timed steps in each: {options.steps}; ratios round"
             " by round.", "",
             "| mesh | tokens/s, median [range] | of one process, median [range] | bar |", "|---|---|---|---|"]
    for group in GROUPS:
        alone = speeds[group[0][0]]
        for name, *_, bar in group:
            own = speeds[name]
            ratios = [speed / one for speed, one in zip(own, alone)]
            lines.append(f"| {name} | {statistics.median(own):.0f} [{min(own):.0f}, {max(own):.0f}] |"
                         f" {statistics.median(ratios):.3f} [{min(ratios):.3f}, {max(ratios):.3f}] | {bar or ''} |")
    text = "\n".join(lines) + "\n"
    (options.results / f"ranks-{date}.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
