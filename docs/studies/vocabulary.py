#!/usr/bin/env python3
"""Vocabulary balance: pipelines whose last stage has the output layer against ones where every rank has its share. Prints the tables
of vocabulary.md and draws vocabulary.svg.   python3 docs/studies/vocabulary.py build/heddle"""

import json
import os
import subprocess
import sys
import tempfile

from step_figures import bars

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
SIZES = (32768, 65536, 131072, 262144)

# Yeung et al. 2025, 1F1B: (layers, heads, width) by GPUs, and MFU in percent at those sizes by sequence length: as many layers in every
# stage, layers redistributed, vocabulary split by algorithm 2.
MODELS = {8: (32, 24, 3072), 16: (48, 32, 4096), 32: (64, 40, 5120)}
MEASURED = {
    (8, 2048): ((46.2, 40.5, 33.1, 25.2), (46.0, 46.4, 44.2, 38.9), (50.2, 50.2, 49.8, 49.7)),
    (8, 4096): ((47.1, 41.9, 35.0, 26.8), (46.9, 46.8, 47.4, 43.0), (50.9, 50.8, 50.6, 50.4)),
    (16, 2048): ((45.7, 40.1, 32.4, 24.2), (45.6, 42.8, 38.7, 37.0), (48.9, 50.5, 50.5, 50.5)),
    (16, 4096): ((47.6, 41.2, 33.9, 25.3), (47.4, 43.1, 43.2, 40.2), (51.0, 50.8, 50.7, 50.9)),
    (32, 2048): ((42.8, 37.3, 29.0, 20.9), (43.5, 37.3, 36.3, 29.2), (45.5, 45.9, 45.9, 46.2)),
    (32, 4096): ((43.7, 38.1, 30.1, 21.6), (44.0, 38.1, 37.9, 31.0), (46.2, 46.4, 46.6, 46.8)),
}


def mfu(heddle, gpus, seq, size, vocabulary, stack):
    layers, heads, width = MODELS[gpus]
    config = {"model_type": "gpt2", "activation_function": "gelu_new", "n_embd": width, "n_layer": layers, "n_head": heads, "n_positions": seq,
              "vocab_size": size, "tie_word_embeddings": False, "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/config.json"
        json.dump(config, open(path, "w"))
        said = subprocess.run([heddle, "simulate", "step", "--model", path, "--system", f"{ROOT}/configs/systems/a100-dgx-hdr.toml",
                               "--batch-tokens", str(128 * seq), "--seq", str(seq), "--pp", str(gpus), "--schedule", "1f1b", "--microbatch", "1",
                               "--vocabulary", vocabulary, "--stack", stack, "--json"], check=True, capture_output=True, text=True)
    return 100 * json.loads(said.stdout)["mfu"]


def table(heddle, title, stack, lengths, measured_column):
    print(f"| GPUs, sequence | vocabulary | {title} (measured) | split (measured) | gain (measured) |\n|---|---|---|---|---|")
    rows = []
    for (gpus, seq), measured in MEASURED.items():
        if seq not in lengths:
            continue
        for i, size in enumerate(SIZES):
            whole = mfu(heddle, gpus, seq, size, "replicated", stack)
            split = mfu(heddle, gpus, seq, size, "pipeline", stack)
            whole_was, split_was = measured[measured_column][i], measured[2][i]
            print(f"| {gpus}, {seq:,} | {size // 1024}k | {whole:.1f} ({whole_was}) | {split:.1f} ({split_was}) "
                  f"| {100 * (split / whole - 1):+.0f} % ({100 * (split_was / whole_was - 1):+.0f} %) |")
            rows.append((f"{size // 1024}k\n{gpus} GPUs", whole, whole_was, split, split_was))
    print()
    return rows


def main():
    heddle = sys.argv[1] if len(sys.argv) > 1 else "build/heddle"
    rows = table(heddle, "as many layers in every stage", "megatron", (2048,), 0)
    table(heddle, "layers moved off the last stage", "heddle", (2048, 4096), 1)
    names, whole, whole_was, split, split_was = (list(column) for column in zip(*rows))
    bars(f"{HERE}/vocabulary.svg", "MFU of 1F1B with 128 micro-batches on A100s, sequences of 2,048 tokens", names,
         [("as many layers in every stage", 5, whole, whole_was), ("vocabulary split over the pipeline", 0, split, split_was)], 60)


main()
