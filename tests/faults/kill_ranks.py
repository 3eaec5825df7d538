#!/usr/bin/env python3
"""Kills random ranks of a run at random moments: a whole checkpoint is always there.

    kill_ranks.py HEDDLE [--kills N] [--seed S]

Four processes train with a checkpoint after every step, on dp 2 x pp 2 with ZeRO 1, so that every rank writes its own
share. Some time after a checkpoint was called durable one of them gets SIGKILL. Then every folder with a checkpoint's
name is read whole, the newest is at least the step that was called durable, and the next life goes on from it. In the
end the weights equal those of a run that was never killed, bit for bit. The suite does a few kills; 200 take minutes.
"""
import argparse
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

RANKS = 4
DURABLE = re.compile(r"step (\d+): checkpoint durable")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Life:
    """The four processes of one start of the run."""

    def __init__(self, heddle, run_file, folder, steps, every):
        port = free_port()
        command = [heddle, "train", run_file, "--set", f"run.dir={folder}", "--set", f"train.steps={steps}",
                   "--set", f"checkpoint.every={every}"]
        self.durable = 0
        self.said = []
        self.has_saved = threading.Event()
        self.processes = []
        for rank in range(RANKS):
            place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": RANKS, "MASTER_ADDR": "127.0.0.1",
                     "MASTER_PORT": port - 1, "OMP_NUM_THREADS": 1}
            self.processes.append(subprocess.Popen(
                command, env={**os.environ, **{key: str(value) for key, value in place.items()}},
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE if rank == 0 else subprocess.DEVNULL, text=True))
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self):
        for line in self.processes[0].stderr:
            self.said.append(line)
            if found := DURABLE.search(line):
                self.durable = int(found.group(1))
                self.has_saved.set()
        self.has_saved.set()

    def wait(self):
        statuses = [process.wait(timeout=120) for process in self.processes]
        self.reader.join()
        return statuses


def check(condition, what):
    if not condition:
        sys.exit("FAILED: " + what)


def inspect(heddle, folder, *options):
    done = subprocess.run([heddle, "inspect", folder, "--json", *options], capture_output=True, text=True)
    return json.loads(done.stdout) if done.returncode == 0 else None


def make_run(heddle, folder):
    subprocess.run([heddle, "demo-text", "--out", folder / "text.txt", "--bytes", "100000"], check=True,
                   capture_output=True)
    subprocess.run([heddle, "tokenizer", "train", folder / "text.txt", "--vocab", "300", "--out",
                    folder / "tokenizer.json", "--threads", "1"], check=True, capture_output=True)
    subprocess.run([heddle, "tokenize", folder / "text.txt", "--tokenizer", folder / "tokenizer.json", "--out",
                    folder / "data.tokens", "--threads", "1"], check=True, capture_output=True)
    (folder / "config.json").write_text(json.dumps({
        "model_type": "llama", "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "vocab_size": 300,
        "rms_norm_eps": 1e-5, "tie_word_embeddings": False}))
    (folder / "run.toml").write_text(f"""[model]
config = "{folder}/config.json"
vocab_size = 300
[data]
train = "{folder}/data.tokens"
seq_len = 8
holdout = 0
[train]
tokens_per_step = 16
microbatch = 1
[optim]
schedule = "constant"
[parallel]
pp = 2
zero = 1
[checkpoint]
keep = 2
[observe]
tensorboard = false
report = false
""")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("heddle")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=20240229)
    options = parser.parse_args()
    heddle = os.path.abspath(options.heddle)
    chance = random.Random(options.seed)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="heddle-kill-ranks-"))
    make_run(heddle, folder)
    run, checkpoints = folder / "run", folder / "run" / "checkpoints"
    promised, inside, folders, by_rank = 0, 0, 0, [0] * RANKS
    began = time.monotonic()
    for attempt in range(options.kills):
        life = Life(heddle, folder / "run.toml", run, 1_000_000, 1)
        life.has_saved.wait(timeout=120)
        time.sleep(chance.uniform(0, 0.15))
        victim = chance.randrange(RANKS)
        life.processes[victim].send_signal(signal.SIGKILL)
        statuses = life.wait()
        check(statuses[victim] == -signal.SIGKILL, f"rank {victim} ended before its kill:\n{''.join(life.said)}")
        by_rank[victim] += 1
        promised = max(promised, life.durable)
        here = sorted(checkpoints.iterdir())
        inside += any(".tmp-" in path.name for path in here)
        whole = [path for path in here if ".tmp-" not in path.name]
        steps = []
        for path in whole:
            report = inspect(heddle, path)
            check(report is not None, f"kill {attempt + 1}, rank {victim}: {path} is not whole")
            steps.append(report["step"])
            folders += 1
        check(steps and max(steps) >= promised, f"step {promised} was durable; there are {steps}")
    seconds = time.monotonic() - began
    end = inspect(heddle, run)["step"] + 3
    for name, every in (("run", 1), ("whole", 0)):
        statuses = Life(heddle, folder / "run.toml", folder / name, end, every).wait()
        check(statuses == [0] * RANKS, f"{name} ended with {statuses}")
    check(not any(".tmp-" in path.name for path in checkpoints.iterdir()), "remains of the kills")
    last = checkpoints / f"step-{end:06}"
    files = [path.relative_to(last) for path in last.rglob("*.safetensors")]
    check(len(files) == 3, f"{files}")
    for file in files:
        same = (last / file).read_bytes() == (folder / "whole" / "checkpoints" / last.name / file).read_bytes()
        check(same, f"{file} differs from that of a run without kills")
    shutil.rmtree(folder)
    print(f"{options.kills} kills (of ranks 0 to {RANKS - 1}: {by_rank}), {inside} inside a save; {folders} checkpoints "
          f"read, all whole; {end} steps, the same bits as without kills; {seconds:.0f} s")


if __name__ == "__main__":
    main()
