#!/usr/bin/env python3
"""Starts two ranks under mpirun with different run files, and checks that both are refused.

    mpi_start.py PROGRAM
"""
import json
import os
import subprocess
import sys
import tempfile

RUN_FILE = """[model]
config = "config.json"
vocab_size = 300
[data]
train = "a.txt"
tokenizer = "tokenizer.json"
seq_len = 32
[train]
steps = 3
[run]
dir = "run"
threads = 1
"""
CASES = {
    "optim.lr=0.001": "rank 1 has optim.lr = 0.001, rank 0 has 0.0003",
    "parallel.tp=2": "rank 1 has parallel.tp = 2, rank 0 has 1",
    "data.train=b.txt": "rank 1 has data.train = ",
}


def run(command, folder):
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)


def prepare(program, folder):
    config = {"model_type": "llama", "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 1,
              "num_attention_heads": 4, "max_position_embeddings": 64, "vocab_size": 300, "rms_norm_eps": 1e-5}
    with open(os.path.join(folder, "config.json"), "w") as out:
        json.dump(config, out)
    with open(os.path.join(folder, "run.toml"), "w") as out:
        out.write(RUN_FILE)
    for name, words in (("a.txt", "the quick brown fox "), ("b.txt", "jumps over a lazy dog ")):
        with open(os.path.join(folder, name), "w") as out:
            out.write(words * 500)
    made = run([program, "tokenizer", "train", "a.txt", "b.txt", "--vocab", "300", "--out", "tokenizer.json"], folder)
    if made.returncode != 0:
        sys.exit(made.stderr)


def main():
    program = os.path.abspath(sys.argv[1])
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        prepare(program, folder)
        for setting, wanted in CASES.items():
            rank = ["-n", "1", program, "train", "run.toml"]
            done = run(["mpirun", "--oversubscribe", *rank, ":", *rank, "--set", setting], folder)
            problems = []
            if done.returncode != 2:
                problems.append(f"status {done.returncode}")
            if done.stderr.count(wanted) != 1:
                problems.append(f"not once: {wanted}")
            if os.path.exists(os.path.join(folder, "run", "run.toml")):
                problems.append("the run was started")
            if problems:
                failures += 1
                print(f"{setting}: {'; '.join(problems)}\n{done.stdout}{done.stderr}")
    sys.exit(1 if failures else 0)


main()
