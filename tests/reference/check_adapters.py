#!/usr/bin/env python3
"""Shows that PEFT reads what `heddle train` with [lora] writes: the same loss and, merged by `heddle convert`, the same
logits.

    .venv-references/bin/python tests/reference/check_adapters.py --heddle build/heddle    (needs peft)
"""

import argparse
import json
import subprocess
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from peft import PeftModel
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

HERE = Path(__file__).parent
SEQ = 16
RUN = """
[model]
path = "{base}"
[data]
train = "{folder}/text.txt"
tokenizer = "{folder}"
seq_len = {seq}
holdout = 0.2
[train]
steps = 20
tokens_per_step = 128
microbatch = 2
[lora]
rank = 4
alpha = 8
{more}
[optim]
lr = 1e-2
[run]
dir = "{folder}/run"
threads = 1
"""


def heddle(program: str, *words: str) -> str:
    return subprocess.run([program, *words], check=True, stdout=subprocess.PIPE, text=True).stdout


def load(folder: Path):
    return AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()


def check(program: str, recipe: str, more: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, base = Path(name), HERE / "recipes" / recipe
        # A tokenizer whose 53 ids are those of the model: letters.
        letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ "
        vocab = {letter: i for i, letter in enumerate(letters)}
        tokenizer = dict(version="1.0", truncation=None, padding=None, added_tokens=[], normalizer=None, post_processor=None,
                         pre_tokenizer=dict(type="Split", pattern=dict(Regex="."), behavior="Isolated", invert=False),
                         decoder=None, model=dict(type="WordLevel", vocab=vocab, unk_token=" "))
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
        text = "the heddle parts the warp so that the weft can pass " * 40
        (folder / "text.txt").write_text(text)
        (folder / "run.toml").write_text(RUN.format(base=base, folder=folder, seq=SEQ, more=more))
        heddle(program, "train", str(folder / "run.toml"))
        adapter = folder / "run" / "checkpoints" / "step-000020"
        ids = torch.tensor(PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))(text)["input_ids"])
        windows = (len(ids) - 1) // SEQ
        inputs, targets = ids[:windows * SEQ].view(windows, SEQ), ids[1:windows * SEQ + 1].view(windows, SEQ)
        with torch.no_grad():
            start = load(base)(input_ids=inputs).logits
            logits = PeftModel.from_pretrained(load(base), adapter)(input_ids=inputs).logits
            heddle(program, "convert", str(adapter), "--out", str(folder / "merged"))
            merged = load(folder / "merged")(input_ids=inputs).logits
        (folder / "windows.txt").write_text(text[:windows * SEQ + 1])
        ours = json.loads(heddle(program, "eval", str(adapter), "--data", str(folder / "windows.txt"), "--seq", str(SEQ),
                                 "--tokenizer", str(folder), "--json"))["loss"]
        loss = lambda made: F.cross_entropy(made.flatten(0, 1), targets.flatten()).item()
        difference = ((merged - logits).norm() / logits.norm()).item()
        print(f"{recipe}: before {loss(start):.4f}, PEFT {loss(logits):.6f}, heddle {ours:.6f}, merged {difference:.1e}")
        assert loss(logits) < loss(start) - 0.05 and abs(loss(logits) - ours) < 1e-5 and difference < 1e-5


if __name__ == "__main__":
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--heddle", required=True)
    program = arguments.parse_args().heddle
    check(program, "lora-llama", "")
    check(program, "lora-llama-some", 'targets = ["v_proj", "mlp.down_proj"]\nrslora = true')
    check(program, "lora-gpt2", "")
    check(program, "lora-phi3", 'targets = ["qkv_proj", "o_proj"]')
