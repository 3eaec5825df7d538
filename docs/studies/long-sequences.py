#!/usr/bin/env python3
"""Ways to share long sequences: what they send and what a step waits for. Prints the tables of long-sequences.md.
   python3 docs/studies/long-sequences.py build/heddle"""

import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
LLAMA3 = f"{ROOT}/configs/models/llama3-8b.json"
# The model of the LightSeq tables: LLaMA-7B, as many key heads as query heads.
LLAMA = dict(json.load(open(LLAMA3)), intermediate_size=11008, vocab_size=32000, num_key_value_heads=32)
SYSTEMS = {"H200, 400 Gb/s": "h200-hgx-ndr", "A100, 100 Gb/s": "a100-800g"}
METHODS = ("ring", "gather", "ulysses", "usp", "lightseq", "tokenring")
MIB = 2.0**20


def ask(heddle, *words):
    said = subprocess.run([heddle, *words, "--json"], capture_output=True, text=True)
    return json.loads(said.stdout) if said.returncode == 0 else None


def attention(heddle, method, cp, tokens, heads, key_heads, *options):
    """Means over ranks of what one layer sends: elements as byte tables of papers count them, and bytes."""
    played = ask(heddle, "simulate", "context", "--method", method, "--cp", str(cp), "--seq", str(tokens), "--heads", str(heads),
                 "--kv-heads", str(key_heads), "--head-dim", "128", *options)
    passes = (played["forward"], played["backward"])
    return (sum(sum(one["elements_by_rank"]) for one in passes) / cp, sum(sum(one["bytes_by_rank"]) for one in passes) / cp)


def step(heddle, model, system, tokens, *options):
    return ask(heddle, "simulate", "step", "--model", model, "--seq", str(tokens), "--batch-tokens", str(tokens), "--microbatch", "1",
               "--system", f"{ROOT}/configs/systems/{SYSTEMS[system]}.toml", *options)


def of_a_layer(heddle, ranks, tokens, group, *options):
    """What a rank sends in a layer by collectives, from the counters of a step: of a ring, all but its own part of every gathered or
    scattered tensor. The ends of the model are taken off with a step of half the layers."""
    payload, layers = [], LLAMA["num_hidden_layers"]
    for count in (layers, layers // 2):
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/config.json"
            json.dump(dict(LLAMA, num_hidden_layers=count), open(path, "w"))
            report = step(heddle, path, "A100, 100 Gb/s", tokens, *options)
        payload.append(sum(row["payload_bytes"] for row in report["messages"][0]
                           if row["group"] == group and row["operation"] in ("all_gather", "reduce_scatter")))
    return (payload[0] - payload[1]) / (layers - layers // 2) * (ranks - 1) / ranks


def volumes(heddle):
    print("| ranks | tokens | LightSeq, 16 bits | LightSeq, as sent | tp + sequence, Heddle | Megatron | 16 bits: less by | as sent: less by | gradients, parameters |\n"
          "|---|---|---|---|---|---|---|---|---|")
    for ranks, tokens in ((8, 65536), (8, 262144), (16, 131072), (16, 524288)):
        elements, size = attention(heddle, "lightseq", ranks, tokens, 32, 32)
        own = of_a_layer(heddle, ranks, tokens, "tp", "--tp", str(ranks), "--sequence", "true", "--recompute", "block")
        # Megatron gathers the inputs of both products once more in backward; Heddle has them from the second forward.
        megatron = own + 2 * 2 * tokens * 4096 * (ranks - 1) / ranks
        zero = of_a_layer(heddle, ranks, tokens, "cp", "--cp", str(ranks), "--context", "lightseq", "--zero", "1", "--recompute", "block")
        print(f"| {ranks} | {tokens // 1024}K | {2 * elements / MIB:.0f} | {size / MIB:.0f} | {own / MIB:.0f} | {megatron / MIB:.0f} "
              f"| {megatron / (2 * elements):.2f} | {megatron / size:.2f} | {zero / MIB:.0f} |")


def methods(heddle, name, config, key_heads, tokens):
    for system in SYSTEMS:
        print(f"\n{name}, {tokens // 1024}K tokens, {system}:\n")
        print("| method | " + " | ".join(f"cp {cp}: sent | step | waits" for cp in (4, 8, 16, 32)) + " |\n|---|" + "---|" * 12)
        for method in METHODS:
            cells = []
            for cp in (4, 8, 16, 32):
                with tempfile.TemporaryDirectory() as folder:
                    path = f"{folder}/config.json"
                    json.dump(config, open(path, "w"))
                    # Of usp: heads among the ranks of a server, as many as key heads allow.
                    heads = ("--context-heads", str(min(4 if cp <= 8 else 8, cp // 2))) if method == "usp" else ()
                    report = step(heddle, path, system, tokens, "--cp", str(cp), "--context", method, "--zero", "1", "--recompute", "block",
                                  *heads)
                if report is None:
                    cells += ["-", "-", "-"]
                    continue
                size = attention(heddle, method, cp, tokens, 32, key_heads, *heads)[1]
                cells += [f"{size / MIB:.0f}", f"{report['step_seconds']:.2f} s", f"{100 * report['seconds']['cp'] / report['step_seconds']:.0f} %"]
            print(f"| {method} | " + " | ".join(cells) + " |")


def main():
    heddle = sys.argv[1] if len(sys.argv) > 1 else "build/heddle"
    volumes(heddle)
    methods(heddle, "LLaMA-7B (32 key heads)", LLAMA, 32, 131072)
    methods(heddle, "Llama 3 8B (8 key heads)", json.load(open(LLAMA3)), 8, 131072)


main()
