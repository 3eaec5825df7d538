#!/usr/bin/env python3
"""A rank of a training run of four is killed in the middle of a step and another process takes its place: how long that takes, and whether anything of the run is lost by it.

    python3 benchmarks/recover/replaced.py --heddle build/heddle --text text.txt --out runs/replaced --device cuda --mesh pp4 --exact

Meshes: dp4, dp2xpp2, pp4 (every rank keeps a copy of another's state), sites2xdp2 and sites4 (sites of two ranks or of one, which is lost with it and made anew of another). With --spare a fifth process waits from the beginning and takes the place at once, so that no step is
made with fewer ranks. With --exact the weights and states at the end have to be, bit for bit, those of a run that nobody disturbs; that holds where sums are made in the same
order: with --spare, or without replicas. Ends with 1 where that or anything else does not hold. Only the standard library is needed.
"""

import hashlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time

from elastic_run import MESHES, RANKS, TOKEN, Launched, Watched, end_by_signals, prepare, settings_of
from heddle_calls import parser_of, run

ALL_MESHES = MESHES | {
    "dp4": {"parallel.dp": 4},
    "sites2xdp2": {"parallel.sites": 2, "parallel.dp": 2, "outer.every": 8},
    "sites4": {"parallel.sites": 4, "parallel.dp": 1, "outer.every": 8},
}
BATCH = {"cpu": {}, "cuda": {"train.microbatch": 4, "train.tokens_per_step": 16384}}  # steps of some tenths of a second
WARM = 5  # the first step that is timed
BEFORE = 30  # steps of the whole mesh before the kill
STOPPED = 6  # the status of a run that was stopped and saved
LIMIT = 15.0  # seconds until a step of four ranks is finished again


def arguments():
    parser = parser_of(__doc__, "runs")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--mesh", default="pp4", choices=ALL_MESHES)
    parser.add_argument("--spare", action="store_true", help="a fifth process waits to take a place")
    parser.add_argument("--exact", action="store_true", help="compare with a run that nobody disturbs")
    parser.add_argument("--freeze", action="store_true", help="SIGSTOP in place of kill -9; the process is killed once the others go on")
    parser.add_argument("--again", type=float, metavar="SECONDS", help="another rank is killed within so many seconds, while the others put the run together again; needs dp4")
    parser.add_argument("--more", type=int, default=20, help="steps that are made when the rank has been replaced")
    parser.add_argument("--longest", type=float, default=120, help="seconds to wait for anything")
    parser.add_argument("--victim", type=int, help="by the place in which the launcher started it (default: a random one)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of the run file; the value in JSON")
    return parser.parse_args()


class NotHeld(Exception):
    pass


def run_file_of(options, name, more):
    # Without clipping nothing depends on the order in which norms of stages are summed.
    own = {"run.device": options.device, "optim.clip": 0, "optim.schedule": "constant", "checkpoint.every": 0}
    return prepare(options.heddle, options.text, options.out, name, own | BATCH[options.device] | ALL_MESHES[options.mesh] | settings_of(options.set) | more)


def losses_of(folder):
    """By step; each has to be there once."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    losses = [(row["step"], row["loss"]) for row in rows if "loss" in row]
    if [step for step, _ in losses] != list(range(1, len(losses) + 1)):
        raise NotHeld(f"steps are not there once each: {[step for step, _ in losses]}")
    return dict(losses)


def median_step(folder, first, last):
    """Of these steps, in seconds, as the run itself measured them."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return statistics.median(row["step_seconds"] for row in rows if "loss" in row and first <= row["step"] <= last)


def digests_of(folder):
    """Of all tensors of the last checkpoint, and its name."""
    found = {}
    newest = max((folder / "checkpoints").iterdir(), key=lambda folder: folder.name)
    for file in sorted(newest.rglob("*.safetensors")):
        data = file.read_bytes()
        size = int.from_bytes(data[:8], "little")
        for name, entry in json.loads(data[8 : 8 + size]).items():
            if name != "__metadata__":
                begin, end = (8 + size + offset for offset in entry["data_offsets"])
                found[f"{file.name}: {name}"] = hashlib.sha256(data[begin:end]).hexdigest()
    return newest.name, found


class Trial:
    def __init__(self, options, name):
        self.options, self.folder, self.log = options, options.out / name, options.out / f"{name}.log"
        self.run_file = run_file_of(options, name, {})
        self.run = Launched(options.heddle, self.run_file, self.log)
        self.watched = Watched(self.folder)
        self.spare = None

    def wait(self, what, of):
        until = time.time() + self.options.longest
        while not what():
            if time.time() > until or not self.run.is_running():
                raise NotHeld(f"{of}: not {f'within {self.options.longest} s' if self.run.is_running() else 'before the run ended'}")
            time.sleep(0.005)

    def is_whole(self, members, begin=0):
        """Of an epoch that began later than that."""
        rows = [row for row in self.watched.epochs if row["seen"] > begin]
        return bool(rows) and rows[-1]["members"] >= members and self.watched.step > rows[-1]["step"]

    def add_spare(self):
        words = [self.options.heddle, "train", self.run_file, "--join", "--ranks", str(RANKS)]
        environment = os.environ | {"HEDDLE_TOKEN": TOKEN, "LOCAL_RANK": "0", "NCCL_HOSTID": "a-fifth-machine"}
        log = open(self.options.out / "spare.log", "w")
        self.spare = subprocess.Popen([str(word) for word in words], env=environment, stdout=log, stderr=subprocess.STDOUT)
        self.wait(lambda: self.is_whole(RANKS + 1), "a fifth process was let in")

    def strike(self):
        members = RANKS + (1 if self.options.spare else 0)
        self.wait(lambda: self.is_whole(RANKS) and self.watched.step >= BEFORE, "four ranks train")
        if self.options.spare:
            self.add_spare()
        first = self.watched.step
        self.wait(lambda: self.watched.step >= first + 3, "they go on")
        time.sleep(random.uniform(0, median_step(self.folder, WARM, BEFORE)))
        pids = self.run.pids()
        # The first of four decides where two are lost at once.
        victim, other = random.sample(range(1 if self.options.again else 0, RANKS), 2)
        if self.options.victim is not None:
            victim = self.options.victim
        pid = pids[victim]
        self.at, self.step = time.time(), self.watched.step
        os.kill(pid, signal.SIGSTOP if self.options.freeze else signal.SIGKILL)
        if self.options.again:
            time.sleep(random.uniform(0, self.options.again))
            print(f"rank {other} is killed {time.time() - self.at:.2f} s behind the first, from which on times count")
            self.at = time.time()
            os.kill(pids[other], signal.SIGKILL)
        self.wait(lambda: self.watched.epochs[-1]["seen"] > self.at, "the others go on")
        if self.options.freeze:
            os.kill(pid, signal.SIGKILL)
        epoch = next(row for row in self.watched.epochs if row["seen"] > self.at)
        self.wait(lambda: self.watched.step > epoch["step"], "a step without it")
        self.next_step = time.time() - self.at
        if self.options.spare:  # it has the place
            self.whole = self.next_step
            if epoch["members"] != RANKS or epoch["spares"] != 0:
                raise NotHeld(f"the spare took no place: {epoch}")
        self.wait(lambda: self.is_whole(members, self.at), "the rank is replaced")
        if not self.options.spare:
            self.whole = time.time() - self.at
        return victim

    def finish(self):
        """With a checkpoint behind the last step."""
        last = self.watched.step + self.options.more
        self.wait(lambda: self.watched.step >= last, "some more steps")
        status = self.run.stop()
        self.watched.close()
        if status != STOPPED:
            raise NotHeld(f"the run ended with status {status}")

    def stop(self):
        self.run.stop()
        if self.spare and self.spare.poll() is None:
            self.spare.kill()
            self.spare.wait()


def tail(file, lines=40):
    try:
        print("\n".join(file.read_text(errors="replace").splitlines()[-lines:]))
    except OSError:
        pass


def disturbed(options):
    name = options.mesh + ("-spare" if options.spare else "")
    trial = Trial(options, name)
    try:
        victim = trial.strike()
        trial.finish()
    except NotHeld:
        tail(trial.log)
        tail(options.out / "spare.log")
        raise
    finally:
        trial.stop()
    print(f"{name}: rank {victim} {'frozen' if options.freeze else 'killed'} behind step {trial.step} ({median_step(trial.folder, WARM, BEFORE):.3f} s a step); next step after {trial.next_step:.2f} s, with four ranks after {trial.whole:.2f} s")
    for row in trial.watched.epochs:
        parts = ", ".join(f"{part} {seconds:.2f}" for part, seconds in row["seconds"].items())
        print(f"  epoch {row['epoch']}: {row['mesh']} behind step {row['step']}, {row['members']} members, {row['spares']} wait ({parts}); {row['cause']}; {row['source']}".rstrip("; "))
    return trial


def compare(options, folder):
    """With a run of four ranks that knows nothing of epochs."""
    own = losses_of(folder)
    name = options.mesh + "-alone"
    run_file = run_file_of(options, name, {"train.steps": max(own), "recover.elastic": False})
    run([options.heddle, "train", run_file, "--ranks", RANKS, "--fresh"])
    alone = losses_of(options.out / name)
    difference = max(abs(own[step] - alone.get(step, float("nan"))) for step in own)
    (newest, found), (expected_newest, expected) = digests_of(folder), digests_of(options.out / name)
    same = sum(found.get(key) == digest for key, digest in expected.items())
    before, plain = (median_step(one, WARM, BEFORE) for one in (folder, options.out / name))
    print(f"  undisturbed, without recovery: {plain:.3f} s a step, with it {before:.3f} ({before / plain - 1:+.1%}); losses differ by {difference:.2g}, {same} of {len(expected)} tensors of {newest} are equal bit for bit")
    if newest != expected_newest or found != expected or difference != 0:
        raise NotHeld("not what the undisturbed run has")


def main():
    options = arguments()
    end_by_signals()
    try:
        trial = disturbed(options)
        losses_of(trial.folder)
        if options.exact:
            compare(options, trial.folder)
        if trial.whole > LIMIT:
            raise NotHeld(f"{trial.whole:.2f} s are more than {LIMIT}")
    except NotHeld as error:
        sys.exit(f"FAIL: {error}")
    print("  held")


if __name__ == "__main__":
    main()
