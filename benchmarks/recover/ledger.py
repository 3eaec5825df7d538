#!/usr/bin/env python3
"""Kills and joins in one training run: every step is finished once, with the samples that it has without them and as many tokens.

    python3 benchmarks/recover/ledger.py --heddle build/heddle --text tinyshakespeare.txt --out runs/ledger --kills 100 --joins 20

Four processes (dp 2 x pp 2, with restarts) and newcomers that come in pairs, so that there are three replicas for a while, whose shares differ. The same run without a fault goes
beside it: a sample that was left out or taken twice would show in the loss of its step. Only the standard library is needed.
"""

import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time

from elastic_run import MESHES, RANKS, TOKEN, Launched, Watched, end_by_signals, prepare, settings_of
from heddle_calls import parser_of

SETTINGS = {"data.seq_len": 128, "train.tokens_per_step": 512, "observe.report": False}
LONGEST = 120  # seconds until the run counts as lost


def arguments():
    parser = parser_of(__doc__, "runs")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--joins", type=int, default=20, help="of newcomers, two by two, besides those who come for the killed")
    parser.add_argument("--seed", type=int, default=1, help="of the random moments and victims")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of the run file; the value in JSON")
    return parser.parse_args()


class Disturbed:
    def __init__(self, options):
        self.options, self.random = options, random.Random(options.seed)
        settings = MESHES["dp2xpp2"] | SETTINGS | settings_of(options.set)
        self.run_file = prepare(options.heddle, options.text, options.out, "disturbed", settings)
        self.run = Launched(options.heddle, self.run_file, options.out / "disturbed.log")
        self.watched = Watched(options.out / "disturbed")
        self.guests, self.guests_log = [], open(options.out / "guests.log", "w")

    def wait(self, what, why):
        until = time.time() + LONGEST
        while not what():
            if time.time() > until or not self.run.is_running():
                sys.exit(f"lost while waiting for {why}: see {self.options.out}/disturbed.log")
            time.sleep(0.02)

    def members(self):
        return self.watched.epochs[-1]["members"] if self.watched.epochs else 0

    def is_whole(self):
        # On a busy machine the others may do without a guest that says nothing for long; nobody replaces it.
        self.guests = [guest for guest in self.guests if guest.poll() is None]
        return self.members() == RANKS + len(self.guests) and self.watched.step > self.watched.epochs[-1]["step"]

    def settle(self):
        self.wait(self.is_whole, "all members")

    def kill(self):
        """One of the four, whom the launcher replaces, or a guest."""
        self.settle()
        time.sleep(self.random.uniform(0, 0.5))
        victim = self.random.choice(sorted(self.run.pids().values()) + self.guests)
        if victim in self.guests:
            self.guests.remove(victim)
            victim.kill()
            victim.wait()
        else:
            os.kill(victim, signal.SIGKILL)
        epochs = len(self.watched.epochs)
        self.wait(lambda: len(self.watched.epochs) > epochs, "the next epoch")

    def join(self):
        self.settle()
        command = [self.options.heddle, "train", str(self.run_file), "--join", "--ranks", str(RANKS)]
        for _ in range(2):
            self.guests.append(subprocess.Popen(command, env=os.environ | {"HEDDLE_TOKEN": TOKEN}, stdout=self.guests_log, stderr=subprocess.STDOUT))

    def all(self):
        turns = ["kill"] * self.options.kills + ["join"] * (self.options.joins // 2)
        self.random.shuffle(turns)
        for number, turn in enumerate(turns):
            # More than four guests would be replicas without a micro-batch.
            if turn == "join" and len(self.guests) > 2:
                turns.append(turn)
                continue
            getattr(self, turn)()
            print(f"{number}: {turn}, {self.members()} members, step {self.watched.step}", flush=True)
        self.settle()
        return self.watched.step

    def stop(self):
        self.status = self.run.stop()
        for guest in self.guests:
            guest.wait()
        self.watched.close()


def undisturbed(options, steps):
    run_file = prepare(options.heddle, options.text, options.out, "undisturbed", MESHES["dp2xpp2"] | SETTINGS | settings_of(options.set))
    run = Launched(options.heddle, run_file, options.out / "undisturbed.log", restart=False)
    watched = Watched(options.out / "undisturbed")
    while watched.step < steps and run.is_running():
        time.sleep(0.1)
    run.stop()
    watched.close()


def steps_of(folder):
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [row for row in rows if "loss" in row]


def main():
    options = arguments()
    end_by_signals()
    options.out.mkdir(parents=True, exist_ok=True)
    disturbed = Disturbed(options)
    try:
        steps = disturbed.all()
    finally:
        disturbed.stop()
    undisturbed(options, steps)
    rows, expected = steps_of(options.out / "disturbed"), steps_of(options.out / "undisturbed")
    tokens = [row["tokens"] for row in rows]
    sizes = {later - earlier for earlier, later in zip([0, *tokens], tokens)}
    both = list(zip(rows, expected))
    away = [abs(own["loss"] - other["loss"]) for own, other in both]
    # What a sample more or less would do is of the size by which losses of steps differ.
    change = statistics.median(abs(later["loss"] - row["loss"]) for row, later in zip(expected[len(both) // 2 :], expected[len(both) // 2 + 1 :]))
    epochs = [json.loads(line) for line in (options.out / "disturbed" / "epochs.jsonl").read_text().splitlines()]
    result = {
        "kills": options.kills,
        "joins": options.joins,
        "epochs": len(epochs),
        "meshes": sorted({f"{epoch['mesh']}, {epoch['spares']} waiting" for epoch in epochs}),
        "steps": len(rows),
        "every_step_once": [row["step"] for row in rows] == list(range(1, len(rows) + 1)),
        "gone_back": sum(1 for earlier, later in zip(epochs, epochs[1:]) if later["step"] < earlier["step"]),
        "tokens_per_step": sorted(sizes),
        "steps_compared": len(both),
        "loss_differs_at_most": max(away),
        "loss_of_neighbouring_steps_differs": change,
        "status": disturbed.status,
    }
    (options.out / "ledger.json").write_text(json.dumps(result, indent=1))
    print(json.dumps(result, indent=1))
    is_good = result["every_step_once"] and len(sizes) == 1 and result["gone_back"] == 0 and max(away) < change / 10
    sys.exit(0 if is_good else 1)


if __name__ == "__main__":
    main()
