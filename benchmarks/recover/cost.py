#!/usr/bin/env python3
"""What a run that outlives its ranks costs when nothing fails: steps of two processes over TCP, plain, elastic, and with copies, in turns.

    python3 benchmarks/recover/cost.py --heddle build/heddle --text tinyshakespeare.txt --out runs/cost

Prints the median step of every run, and of each kind the median of its ratios to the plain run of the same turn. Only the standard library is needed.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))
from heddle_calls import make_tokens  # noqa: E402

KINDS = {"plain": [], "elastic": ["--elastic"], "copies": ["--elastic", "--set", "recover.copies=1"]}
RANKS, WARM_UP = 2, 5
RUN_FILE = """[model]
preset = "llama-15m"
vocab_size = 512
[data]
train = "{tokens}"
seq_len = 256
[train]
steps = {steps}
microbatch = 2
tokens_per_step = 2048
[parallel]
dp = 2
[observe]
report = false
[checkpoint]
on_exit = false
[run]
threads = 1
"""


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--heddle", default=str(ROOT / "build" / "heddle"), help="the program")
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--text", type=Path, required=True, help="a text file")
    parser.add_argument("--steps", type=int, default=40, help="of every run")
    parser.add_argument("--turns", type=int, default=4, help="runs of every kind")
    return parser.parse_args()


def prepare(options):
    make_tokens(options.heddle, options.text, 512, options.out)
    (options.out / "run.toml").write_text(RUN_FILE.format(tokens=(options.out / "text.tokens").resolve(), steps=options.steps))
    token = options.out / "token"
    token.write_text("what who may join this benchmark knows\n")
    token.chmod(0o600)


def free_port():
    with socket.socket() as own:
        own.bind(("127.0.0.1", 0))
        return own.getsockname()[1]


def median_step(options, kind, turn):
    """In seconds, without the first steps."""
    folder, port, processes = options.out / f"{kind}-{turn}", free_port(), []
    for rank in range(RANKS):
        place = dict(RANK=rank, WORLD_SIZE=RANKS, LOCAL_RANK=rank, LOCAL_WORLD_SIZE=RANKS, MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
        environment = os.environ | {name: str(value) for name, value in place.items()} | {"HEDDLE_TOKEN_FILE": str((options.out / "token").resolve())}
        command = [options.heddle, "train", str(options.out / "run.toml"), "--fresh", "--set", f'run.dir="{folder.resolve()}"', *KINDS[kind]]
        processes.append(subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True))
    for process in processes:
        _, error = process.communicate()
        if process.returncode != 0:
            sys.exit(f"{kind}: status {process.returncode}:\n{error}")
    lines = next(folder.rglob("metrics.jsonl")).read_text().splitlines()
    seconds = [line["step_seconds"] for line in map(json.loads, lines) if "step_seconds" in line]
    return statistics.median(seconds[WARM_UP:])


def main():
    options = arguments()
    prepare(options)
    seconds = {kind: [] for kind in KINDS}
    for turn in range(options.turns):
        for kind in KINDS:
            seconds[kind].append(median_step(options, kind, turn))
            print(f"turn {turn}: {kind} {seconds[kind][-1] * 1000:.1f} ms", flush=True)
    for kind, own in seconds.items():
        ratios = [one / plain for one, plain in zip(own, seconds["plain"])]
        print(f"{kind}: {statistics.median(ratios):.3f} of plain ({min(ratios):.3f} to {max(ratios):.3f})")


if __name__ == "__main__":
    main()
