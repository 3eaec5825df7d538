#!/usr/bin/env python3
"""Trains the same small runs with ranks that are threads, processes under mpirun, and processes that
meet over TCP, and checks that weights are equal to the bit: what is compressed, exchanged seldom or
sent as signs does not depend on who carries it. Plain sums are over two ranks in all of them, because
MPI adds those of more in an order of its own.

    transports_agree.py PROGRAM
"""
import json
import os
import socket
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
steps = 8
tokens_per_step = 256
[compress]
min_bytes = 0
[run]
threads = 1
"""
FOUR = 4
CASES = {
    "int8 gradients, pipeline by zfp": ["parallel.pp=2", "compress.gradients=int8", "compress.pipeline=zfp:16"],
    "gradients and weights, ZeRO 3": ["parallel.tp=2", "parallel.zero=3", "compress.gradients=e3m0",
                                      "compress.weights=bf16"],
    "lossless weights and activations": ["parallel.tp=2", "compress.weights=lossless", "compress.tensor=lossless"],
    "1-bit Adam": ["parallel.pp=2", "optim.name=onebit-adam", "optim.freeze_step=4", "optim.warmup_steps=2"],
    "sites": ["parallel.sites=2", "outer.every=3", "outer.fragments=2", "outer.delay=1"],
}


def prepare(program, folder):
    config = {"model_type": "llama", "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2,
              "num_attention_heads": 4, "max_position_embeddings": 64, "vocab_size": 300, "rms_norm_eps": 1e-5}
    with open(os.path.join(folder, "config.json"), "w") as out:
        json.dump(config, out)
    with open(os.path.join(folder, "run.toml"), "w") as out:
        out.write(RUN_FILE)
    with open(os.path.join(folder, "a.txt"), "w") as out:
        out.write("the quick brown fox jumps over a lazy dog " * 500)
    subprocess.run([program, "tokenizer", "train", "a.txt", "--vocab", "300", "--out", "tokenizer.json"],
                   cwd=folder, check=True, capture_output=True)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def over_tcp(command, folder):
    """The port that ranks meet at is the one after MASTER_PORT."""
    place = {"WORLD_SIZE": str(FOUR), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port() - 1)}
    ranks = [subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              env={**os.environ, **place, "RANK": str(rank), "LOCAL_RANK": str(rank)})
             for rank in range(FOUR)]
    said = [rank.communicate(timeout=120)[0] for rank in ranks]
    return max(rank.returncode for rank in ranks), "".join(said)


def run(command, folder):
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout + done.stderr


def weights(folder, name):
    with open(os.path.join(folder, name, "checkpoints", "step-000008", "model.safetensors"), "rb") as file:
        return file.read()


def main():
    program = os.path.abspath(sys.argv[1])
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        prepare(program, folder)
        for number, (case, settings) in enumerate(CASES.items()):
            made = {}
            for transport in ("threads", "mpirun", "tcp"):
                name = f"{transport}-{number}"
                train = [program, "train", "run.toml", *(f"--set={one}" for one in [f"run.dir={name}", *settings])]
                if transport == "threads":
                    status, said = run([*train, "--ranks", str(FOUR)], folder)
                elif transport == "mpirun":
                    status, said = run(["mpirun", "--oversubscribe", "-n", str(FOUR), *train], folder)
                else:
                    status, said = over_tcp(train, folder)
                if status != 0:
                    failures += 1
                    print(f"{case}, {transport}: status {status}\n{said}")
                    continue
                made[transport] = weights(folder, name)
            if len(set(made.values())) > 1:
                failures += 1
                print(f"{case}: weights differ between {' and '.join(made)}")
    sys.exit(1 if failures else 0)


main()
