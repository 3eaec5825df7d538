#!/usr/bin/env python3
"""Prompts that ranks under mpirun share continue as on one rank, with one and with two exchanges of experts' rows.

    mpi_generate.py HEDDLE
"""
import json
import os
import subprocess
import sys
import tempfile

WORDS = "the cat and a dog ran to see what was in the old red house by the sea when it was warm".split()
CONFIG = {"model_type": "heddle_moe", "hidden_size": 32, "intermediate_size": 48, "moe_intermediate_size": 24,
          "num_hidden_layers": 3, "first_k_dense_replace": 0, "n_routed_experts": 8, "num_experts_per_tok": 1,
          "norm_topk_prob": False, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
          "vocab_size": 300, "tie_word_embeddings": False}
RUN = """[model]
config = "config.json"
[data]
train = "text.tokens"
tokenizer = "tokenizer.json"
seq_len = 32
[train]
steps = 100
tokens_per_step = 256
microbatch = 2
[optim]
lr = 1e-2
[run]
dir = "run"
threads = 1
"""


def run(folder, command):
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=folder, env=environment)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def main():
    heddle = os.path.abspath(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        def write(name, text):
            with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                file.write(text)

        write("text.txt", "\n".join(" ".join(WORDS[(i + j) % len(WORDS)] for j in range(12)) for i in range(400)))
        write("config.json", json.dumps(CONFIG))
        write("run.toml", RUN)
        write("prompts.txt", "the cat\na dog ran to\nwhat was\nit was warm by the\nold red house\n")
        run(folder, [heddle, "tokenizer", "train", "text.txt", "--vocab", "300", "--out", "tokenizer.json"])
        run(folder, [heddle, "tokenize", "text.txt", "--tokenizer", "tokenizer.json", "--out", "text.tokens"])
        run(folder, [heddle, "train", "run.toml"])
        generate = [heddle, "generate", "run", "--prompts", "prompts.txt", "--max-tokens", "12", "--temperature", "0",
                    "--json"]

        def texts(command):
            return [one["text"] for one in json.loads(run(folder, command))["texts"]]

        expected = texts(generate)
        if len(expected) != 5 or len(set(expected)) < 2:
            sys.exit(f"a model that says the same of all prompts: {expected}")
        failed = False
        for exchanges in ("one", "two"):
            for ranks in (2, 4):
                found = texts(["mpirun", "--oversubscribe", "-n", str(ranks), *generate, "--threads", "1", "--set",
                               f"parallel.ep={ranks}", "--exchanges", exchanges])
                print(f"{exchanges} on {ranks} ranks: {'equal' if found == expected else found}")
                failed = failed or found != expected
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
