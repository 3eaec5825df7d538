#!/usr/bin/env python3
"""What a training run gets done in a given time while a random rank is killed every so often, by the way in which it goes on, beside runs that are left alone.

    python3 benchmarks/recover/endure.py --heddle build/heddle --text tinyshakespeare.txt --out runs/endure --minutes 20 --every 60

Ways: alone (nobody is killed, no recovery), elastic (goes on without the lost rank, and with another when it has come), restart (all ranks start again from the newest checkpoint).
Rows run at the same time, so that all of them have the same machine; more of them:

    --row 'copies, a checkpoint every 1000 steps=elastic,pp4,checkpoint.every=1000'

Prints progress every half minute and a table, and writes OUT/endure.json. Only the standard library is needed.
"""

import json
import os
import random
import signal
import socket
import subprocess
import threading
import time

from elastic_run import MESHES, RANKS, TOKEN, Launched, Watched, end_by_signals, prepare, settings_of
from heddle_calls import parser_of

SETTINGS = {"data.seq_len": 128, "train.tokens_per_step": 512, "observe.report": False, "observe.console_every": 100}
ROWS = [
    "alone, dp 2 x pp 2=alone,dp2xpp2",
    "replica=elastic,dp2xpp2",
    "alone, pp 4=alone,pp4",
    "copies=elastic,pp4",
    'CheckFree=elastic,pp4,recover.copies=0,recover.stages="checkfree"',
    "checkpoint and restart=restart,dp2xpp2",
]
WAYS = ("alone", "elastic", "restart")
SAY_EVERY = 30


def arguments():
    parser = parser_of(__doc__, "runs")
    parser.add_argument("--minutes", type=float, default=20.0, help="from the first finished step on")
    parser.add_argument("--every", type=float, default=60.0, help="seconds between two faults of a run")
    parser.add_argument("--row", action="append", default=[], metavar="NAME=WAY,MESH[,KEY=VALUE...]", help="one more; the value in JSON")
    parser.add_argument("--only", action="store_true", help="the rows of --row alone")
    parser.add_argument("--seed", type=int, default=1, help="of the victims")
    return parser.parse_args()


class Restarted:
    """Ranks that all end with the first that is lost, and are all started again."""

    def __init__(self, heddle, run_file, log):
        self.heddle, self.run_file, self.log = heddle, run_file, open(log, "w")
        self.starts, self._ends = 0, False
        self._start("--fresh")
        self._thread = threading.Thread(target=self._keep, daemon=True)
        self._thread.start()

    def _start(self, *words):
        with socket.socket() as own:
            own.bind(("127.0.0.1", 0))
            port = own.getsockname()[1]
        self.processes = []
        for rank in range(RANKS):
            place = dict(RANK=rank, WORLD_SIZE=RANKS, LOCAL_RANK=rank, LOCAL_WORLD_SIZE=RANKS, MASTER_ADDR="127.0.0.1", MASTER_PORT=port, HEDDLE_TOKEN=TOKEN)
            environment = os.environ | {name: str(value) for name, value in place.items()}
            self.processes.append(subprocess.Popen([self.heddle, "train", str(self.run_file), *words], env=environment, stdout=self.log, stderr=subprocess.STDOUT))
        self.starts += 1

    def _keep(self):
        while not self._ends:
            if any(process.poll() is not None for process in self.processes) and not self._ends:
                self._wait_for_all()
                if not self._ends:
                    self._start()
            time.sleep(0.02)

    def _wait_for_all(self, longest=30):
        until = time.time() + longest
        for process in self.processes:
            try:
                process.wait(max(0, until - time.time()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def pids(self):
        return {rank: process.pid for rank, process in enumerate(self.processes) if process.poll() is None}

    def stop(self):
        self._ends = True
        self._thread.join()
        for process in self.processes:
            process.send_signal(signal.SIGINT)
        self._wait_for_all()
        self.log.close()


class Row:
    def __init__(self, options, text, number):
        self.name, words = text.split("=", 1)
        way, mesh, *settings = words.split(",")
        if way not in WAYS or mesh not in MESHES:
            raise SystemExit(f"--row {text}: a way of {', '.join(WAYS)} and a mesh of {', '.join(MESHES)} come behind the name")
        self.way, self.mesh, self.options, self.random = way, mesh, options, random.Random(f"{options.seed} {number}")
        overrides = MESHES[mesh] | SETTINGS | ({} if way == "elastic" else {"recover.elastic": False, "recover.copies": 0})
        run_file = prepare(options.heddle, options.text, options.out, f"row-{number}", overrides | settings_of(settings))
        made = Launched if way == "elastic" else Restarted
        self.run = made(options.heddle, run_file, options.out / f"row-{number}.log")
        self.watched = Watched(options.out / f"row-{number}")
        self.begin, self.faults, self.done = None, 0, 0
        self._thread = threading.Thread(target=self._disturb, daemon=True)
        self._thread.start()

    def _disturb(self):
        while self.watched.step == 0:
            time.sleep(0.01)
        self.begin, self.first = time.time(), self.watched.step
        for fault in range(1, 1 + int(self.options.minutes * 60 / self.options.every)):
            time.sleep(max(0, self.begin + fault * self.options.every - time.time()))
            if time.time() >= self.end() - 1:
                break
            pids = self.run.pids()
            if self.way != "alone" and pids:
                os.kill(self.random.choice(sorted(pids.values())), signal.SIGKILL)
                self.faults += 1
        time.sleep(max(0, self.end() - time.time()))
        # Steps that were lost and made again count once.
        self.done = self.newest() - self.first

    def end(self):
        return self.begin + self.options.minutes * 60

    def newest(self):
        lines = (self.watched.folder / "metrics.jsonl").read_text().splitlines()
        return max(json.loads(line)["step"] for line in lines if '"loss"' in line)

    def is_done(self):
        return not self._thread.is_alive()

    def stop(self):
        self.run.stop()
        self.watched.close()


def watch(rows):
    began = time.time()
    while not all(row.is_done() for row in rows):
        time.sleep(SAY_EVERY)
        said = ", ".join(f"{row.name}: {row.watched.step} ({row.faults} faults)" for row in rows)
        print(f"{time.time() - began:.0f} s, load {os.getloadavg()[0]:.0f}; steps: {said}", flush=True)


def main():
    options = arguments()
    end_by_signals()
    options.out.mkdir(parents=True, exist_ok=True)
    rows = [Row(options, text, number) for number, text in enumerate([*([] if options.only else ROWS), *options.row])]
    try:
        watch(rows)
    finally:
        for row in rows:
            row.stop()
    alone = {row.mesh: row.done for row in rows if row.way == "alone"}
    tokens = SETTINGS["train.tokens_per_step"]
    print(f"\n| way | mesh | faults | tokens in {options.minutes:g} minutes | of the run that is left alone |\n|---|---|---|---|---|")
    for row in rows:
        share = f"{row.done / alone[row.mesh]:.3f}" if alone.get(row.mesh) else ""
        print(f"| {row.name} | {row.mesh} | {row.faults} | {row.done * tokens:,} | {share} |")
    result = [{"name": row.name, "way": row.way, "mesh": row.mesh, "faults": row.faults, "steps": row.done, "tokens": row.done * tokens} for row in rows]
    (options.out / "endure.json").write_text(json.dumps({"minutes": options.minutes, "every": options.every, "rows": result}, indent=1))


if __name__ == "__main__":
    main()
