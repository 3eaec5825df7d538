#!/usr/bin/env python3
"""What a run that outlives its ranks costs when nothing fails: steps of two processes over TCP, plain, elastic, and with copies, in turns.

    python3 benchmarks/recover/cost.py --heddle build/heddle --text tinyshakespeare.txt --out runs/cost

Prints the median step of every run with the processor time of all ranks, and of each kind the medians of its ratios to the plain run of the same turn: where other programs have
the machine too, the second says what work a kind adds. Bytes that copies send are compared with those that were predicted. Only the standard library is needed.
"""

import json
import os
import random
import socket
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))
from heddle_calls import make_tokens, parser_of  # noqa: E402

KINDS = {"plain": [], "elastic": ["--elastic"], "copies": ["--elastic", "--set", "recover.copies=1"]}
RANKS, WARM_UP = 2, 5
MESHES = {"dp2": "dp = 2", "pp2": "pp = 2\nzero = 0"}
RUN_FILE = """[model]
preset = "llama-15m"
vocab_size = 512
[data]
train = "{tokens}"
seq_len = 256
[train]
steps = {steps}
microbatch = 2
tokens_per_step = {tokens_per_step}
[parallel]
{mesh}
[checkpoint]
on_exit = false
[run]
threads = 1
"""


def arguments():
    parser = parser_of(__doc__, "runs")
    parser.add_argument("--steps", type=int, default=40, help="of every run")
    parser.add_argument("--mesh", choices=MESHES, default="pp2", help="of the two ranks")
    parser.add_argument("--tokens", type=int, default=2048, help="of a step")
    parser.add_argument("--turns", type=int, default=4, help="runs of every kind")
    return parser.parse_args()


def prepare(options):
    make_tokens(options.heddle, options.text, 512, options.out)
    (options.out / "run.toml").write_text(RUN_FILE.format(tokens=(options.out / "text.tokens").resolve(), steps=options.steps, mesh=MESHES[options.mesh], tokens_per_step=options.tokens))
    token = options.out / "token"
    token.write_text("what who may join this benchmark knows\n")
    token.chmod(0o600)


def free_port():
    """Of those that the system gives to nobody who asks for any."""
    while True:
        with socket.socket() as own:
            port = random.randrange(20000, 30000)
            try:
                own.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue


def measure(options, kind, turn):
    """The median step without the first, and the processor time of all ranks in a step; in seconds."""
    folder, port, processes = options.out / f"{kind}-{turn}", free_port(), []
    for rank in range(RANKS):
        place = dict(RANK=rank, WORLD_SIZE=RANKS, LOCAL_RANK=rank, LOCAL_WORLD_SIZE=RANKS, MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
        environment = os.environ | {name: str(value) for name, value in place.items()} | {"HEDDLE_TOKEN_FILE": str((options.out / "token").resolve())}
        command = [options.heddle, "train", str(options.out / "run.toml"), "--fresh", "--set", f'run.dir="{folder.resolve()}"', *KINDS[kind]]
        processes.append(subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True))
    busy = 0.0
    for process in processes:
        error = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        if status != 0:
            sys.exit(f"{kind}: status {os.waitstatus_to_exitcode(status)}:\n{error}")
        busy += usage.ru_utime + usage.ru_stime
    report = json.loads(next(folder.rglob("report.json")).read_text())
    wrong = [(axis, call) for axis, calls in report["communication"].items() for call, row in calls.items() if row["predicted"] != row["counted"]]
    if wrong:
        sys.exit(f"{kind}: other calls or bytes than predicted: {wrong}")
    lines = next(folder.rglob("metrics.jsonl")).read_text().splitlines()
    seconds = [line["step_seconds"] for line in map(json.loads, lines) if "step_seconds" in line]
    return statistics.median(seconds[WARM_UP:]), busy / options.steps


def main():
    options = arguments()
    prepare(options)
    measured = {kind: [] for kind in KINDS}
    for turn in range(options.turns):
        for kind in KINDS:
            measured[kind].append(measure(options, kind, turn))
            step, busy = measured[kind][-1]
            print(f"turn {turn}: {kind} {step * 1000:.1f} ms, processors {busy * 1000:.1f} ms, load {os.getloadavg()[0]:.0f}", flush=True)
    for kind, own in measured.items():
        steps, busy = ([one[i] / plain[i] for one, plain in zip(own, measured["plain"])] for i in range(2))
        print(f"{kind}: {statistics.median(steps):.3f} of plain ({min(steps):.3f} to {max(steps):.3f}); processor time {statistics.median(busy):.3f}")


if __name__ == "__main__":
    main()
