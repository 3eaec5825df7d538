#!/usr/bin/env python3
"""A training run of four processes is struck by a fault at a random moment, again and again: how long until it is found, what is said of it, and when the next step is finished.

    python3 benchmarks/recover/faults.py --heddle build/heddle --text tinyshakespeare.txt --out runs/faults --kind kill --mesh dp2xpp2 --trials 100

Kinds: kill (kill -9), freeze (SIGSTOP; ended, or woken, when the others go on), link (one between two ranks swallows everything, both ways or one way), bit (flipped in a message
between ranks). The last two need root and /dev/net/tun (wires.py). Prints a line for each trial and a table, and writes OUT/KIND-MESH.json. Only the standard library is needed.
"""

import json
import os
import random
import re
import signal
import statistics
import time

from elastic_run import MESHES, RANKS, Launched, Netted, Watched, end_by_signals, members_by_rank, prepare, settings_of
from heddle_calls import parser_of
from wires import Network

KINDS = ("kill", "freeze", "link", "bit")
SETTLED = 3  # steps of the whole mesh before the next fault
LONGEST = 90  # seconds until a trial, or a run that does not come back to its whole mesh, is lost
CALL, UNIT = re.compile(r"#\d+ of \w+"), re.compile(r"\b((F|B|W|gradients) of|gradients for) ")


def arguments():
    parser = parser_of(__doc__, "runs")
    parser.add_argument("--kind", action="append", choices=KINDS, help="of fault; may be given again (default: all)")
    parser.add_argument("--mesh", action="append", choices=MESHES, help="may be given again (default: all)")
    parser.add_argument("--trials", type=int, default=100, help="of each kind on each mesh")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="for each kind on each mesh: no trial begins later")
    parser.add_argument("--seed", type=int, default=1, help="of the random moments and victims")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of the run file; the value in JSON")
    return parser.parse_args()


class RunIsLost(Exception):
    """Says what did not come."""


class Trials:
    """Of one kind on one mesh, in one run as long as it goes on."""

    def __init__(self, options, kind, mesh):
        self.options, self.kind, self.mesh = options, kind, mesh
        self.random = random.Random(f"{options.seed} {kind} {mesh}")
        self.network = Network(RANKS) if kind in ("link", "bit") else None
        self.starts, self.run, self.watched, self.rows = 0, None, None, []

    def start(self):
        name = f"{self.kind}-{self.mesh}-{self.starts}"
        self.starts += 1
        run_file = prepare(self.options.heddle, self.options.text, self.options.out, name, MESHES[self.mesh] | settings_of(self.options.set))
        self.folder = self.options.out / name
        log = self.options.out / f"{name}.log"
        if self.network:
            self.run = Netted(self.options.heddle, run_file, log, self.network)
        else:
            self.run = Launched(self.options.heddle, run_file, log)
        self.watched = Watched(self.folder)

    def stop(self):
        self.status = self.run.stop()
        self.watched.close()

    def wait(self, name, what):
        until = time.time() + LONGEST
        while not what():
            if time.time() > until or not self.run.is_running():
                raise RunIsLost(name if self.run.is_running() else f"{name} (all have ended)")
            time.sleep(0.005)

    def is_whole(self):
        if not self.watched.epochs:
            return False
        epoch = self.watched.epochs[-1]
        return epoch["members"] == RANKS and epoch["spares"] == 0 and self.watched.step >= epoch["step"] + SETTLED

    def median_step(self):
        times = sorted(self.watched.steps.values())
        own = [later - earlier for earlier, later in zip(times, times[1:])]
        return statistics.median(own[-200:]) if own else 0.0

    def strike(self):
        """When it happened, whom it may cost (by place), and how it is undone."""
        places = sorted(self.run.pids())
        victim, other = self.random.sample(places, 2)
        if self.kind == "kill":
            at = time.time()
            self.run.signal(victim, signal.SIGKILL)
            return at, [victim], lambda: None, {"victim": victim}
        if self.kind == "freeze":
            last = self.random.choice([signal.SIGKILL, signal.SIGCONT])
            pid = self.run.pids()[victim]
            at = time.time()
            os.kill(pid, signal.SIGSTOP)
            return at, [victim], lambda: os.kill(pid, last), {"victim": victim, "then": last.name}
        if self.kind == "link":
            ways = [(victim, other), (other, victim)][: self.random.choice([1, 2])]
            at = time.time()
            for way in ways:
                self.network.rules.swallow(*way, True)
            return at, [victim, other], lambda: [self.network.rules.swallow(*way, False) for way in ways], {"ways": ways}
        self.network.rules.flip(victim)
        self.wait("a message of the rank", lambda: self.network.rules.flipped_at(victim) is not None)
        return self.network.rules.flipped_at(victim), [victim], lambda: None, {"victim": victim}

    def struck(self):
        """What happened in this trial."""
        if self.kind != "bit" or not self.what:
            return self.what
        receiver, copies = self.network.rules.flipped_for(self.what["victim"])
        return self.what | {"receiver": receiver, "copies": copies}

    def once(self):
        self.what = {}
        self.wait("the whole mesh", self.is_whole)
        time.sleep(self.random.uniform(0, 2 * self.median_step()))
        ranks = members_by_rank(self.run, self.folder)
        before, step = len(self.watched.epochs), self.watched.step
        at, costs, undo, self.what = self.strike()
        try:
            self.wait("a notice of the fault", lambda: len(self.watched.epochs) > before)
            epoch = self.watched.epochs[before]
            self.wait("the next step", lambda: epoch["step"] + 1 in self.watched.steps)
        finally:
            undo()
        seconds = epoch["seconds"]
        named = sorted({int(rank) for rank in re.findall(r"\brank (\d+)", epoch["cause"])})
        guilty = [rank for rank, place in enumerate(ranks) if place in costs]
        return self.struck() | {
            "step": step,
            "found": epoch["seen"] - seconds["restore"] - seconds["rebuild"] - seconds["agree"] - at,
            "next": self.watched.steps[epoch["step"] + 1] - at,
            "median_step": self.median_step(),
            "redone": int(seconds["redo"] > 0),
            "gone_back": max(0, step - epoch["step"]),
            "members": epoch["members"],
            "mesh": epoch["mesh"],
            "is_named": any(rank in guilty for rank in named),
            "says_call": bool(CALL.search(epoch["cause"])),
            "says_unit": bool(UNIT.search(epoch["cause"])),
            "cause": epoch["cause"],
            "source": epoch["source"],
            "seconds": seconds,
            "load": os.getloadavg()[0],
        }

    def all(self):
        begin = time.time()
        try:
            self.start()
            for trial in range(self.options.trials):
                if time.time() > begin + self.options.seconds:
                    break
                try:
                    row = self.once()
                    print(
                        f"{self.kind} {self.mesh} {trial}: found {row['found']:.2f} s, next step {row['next']:.2f} s, {row['members']} go on with {row['mesh']}: "
                        f"{row['cause']} | {row['source']}",
                        flush=True,
                    )
                except RunIsLost as missing:
                    row = {"lost": str(missing)} | self.struck()
                    print(f"{self.kind} {self.mesh} {trial}: LOST, {missing} did not come: {self.struck()}, see {self.folder}.log", flush=True)
                    self.stop()
                    self.start()
                self.rows.append(row)
        finally:
            self.stop()
            if self.network:
                self.network.close()
            result = {"kind": self.kind, "mesh": self.mesh, "seconds": time.time() - begin, "starts": self.starts, "trials": self.rows, "steps_once": self.every_step_once()}
            (self.options.out / f"{self.kind}-{self.mesh}.json").write_text(json.dumps(result, indent=1))
        return result

    def every_step_once(self):
        """In the last run: lines of steps that follow each other."""
        lines = (self.folder / "metrics.jsonl").read_text().splitlines()
        steps = [row["step"] for row in map(json.loads, lines) if "loss" in row]
        return steps == list(range(1, len(steps) + 1))


def at(values, part):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else float("nan")


HEADER = ("fault", "mesh", "trials", "step", "found: median", "95 %", "max", "next step: median", "95 %", "max", "redone", "gone back", "named", "call", "unit", "lost", "steps once")


def table_row(result):
    rows = [row for row in result["trials"] if "lost" not in row]
    found, following = [row["found"] for row in rows], [row["next"] for row in rows]

    def count(key):
        return sum(1 for row in rows if row[key])

    figures = [f"{at([row['median_step'] for row in rows], 0.5):.2f}"]
    figures += [f"{at(values, part):.2f}" for values in (found, following) for part in (0.5, 0.95, 1.0)]
    counts = [count("redone"), count("gone_back"), count("is_named"), count("says_call"), count("says_unit"), len(result["trials"]) - len(rows), result["steps_once"]]
    return [result["kind"], result["mesh"], len(result["trials"]), *figures, *counts]


def main():
    options = arguments()
    end_by_signals()
    options.out.mkdir(parents=True, exist_ok=True)
    results = []
    for kind in options.kind or KINDS:
        for mesh in options.mesh or MESHES:
            results.append(Trials(options, kind, mesh).all())
    print("| " + " | ".join(HEADER) + " |\n|" + "---|" * len(HEADER))
    for result in results:
        print("| " + " | ".join(map(str, table_row(result))) + " |")


if __name__ == "__main__":
    main()
