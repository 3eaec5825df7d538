#!/usr/bin/env python3
"""Holds what Heddle writes against what transformers makes of it, opened with defaults.

    .venv-references/bin/python tests/reference/check_exports.py [--heddle build/heddle] [--only NAME ...]

The environment is that of make_references.py. For every model of models/ (or those named) a run with random weights
learns a few short documents, with a tokenizer of its own. Its newest checkpoint, and what `convert --dtype bf16` makes
of it, are opened by AutoModelForCausalLM.from_pretrained(folder) and AutoTokenizer.from_pretrained(folder):

  dtype       the weights have the type that config.json says
  ids         the tokenizer gives the ids that Heddle trained with, and its text back
  loss        of a document, as `heddle eval` says: within 1e-5; of bf16 weights when computed in float32 as Heddle does,
              and in bfloat16 itself within 0.05
  end         greedy generation gives the tokens of `heddle generate` and stops behind the end of the document

Then, for every tokenizer of tokenizers/ and sentencepiece/, a run of one step: its checkpoint is opened by AutoTokenizer, which must give
the ids of cases.json and end texts as config.json says. Exit status 1 if anything differs.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

HERE = Path(__file__).resolve().parent
DOCUMENTS = ["the red fox sees a small boat", "two birds sleep under the old roof",
             "nora paints the door blue again", "a cat waits for rain in the yard"]
PROMPT = "the red fox"
UNSEEN = "again blue boat in nora sleep waits"  # whose loss is far from 0
LOSS, LOSS_IN_BF16 = 1e-5, 0.05
RUN = """
[model]
config = "{config}"
ignore_dropout = true
[data]
train = "{folder}/text.jsonl"
tokenizer = "{tokenizer}"
seq_len = 16
holdout = 0.0
[train]
steps = {steps}
tokens_per_step = 128
microbatch = 8
[optim]
lr = 1e-2
warmup_steps = {warmup}
[run]
dir = "{folder}/run"
threads = 1
"""


class Heddle:
    def __init__(self, program: Path) -> None:
        self.program = program

    def __call__(self, *words: object) -> str:
        done = subprocess.run([self.program, *map(str, words)], text=True, capture_output=True, check=False)
        if done.returncode:
            sys.exit(f"heddle {' '.join(map(str, words))}: status {done.returncode}\n{done.stderr}")
        return done.stdout

    def json(self, *words: object) -> dict:
        return json.loads(self(*words, "--json"))


class Checks:
    """Prints one line for each thing that was held against another."""

    def __init__(self) -> None:
        self.failed = 0

    def __call__(self, name: str, holds: bool, told: str) -> None:
        self.failed += not holds
        print(f"{'ok  ' if holds else 'FAIL'} {name:28} {told}", flush=True)


def write_run(folder: Path, config: Path, tokenizer: Path, steps: int) -> Path:
    file = folder / "run.toml"
    file.write_text(RUN.format(config=config, folder=folder, tokenizer=tokenizer, steps=steps,
                               warmup=min(steps, 10)))
    return file


def newest_checkpoint(folder: Path) -> Path:
    return sorted((folder / "run/checkpoints").iterdir())[-1]


def loss_of(model: torch.nn.Module, ids: list[int]) -> float:
    inputs = torch.tensor([ids])
    with torch.no_grad():
        logits = model(inputs[:, :-1]).logits.float()
    return torch.nn.functional.cross_entropy(logits[0], inputs[0, 1:]).item()


def check_folder(heddle: Heddle, folder: Path, text: Path, name: str, check: Checks) -> None:
    said = json.loads((folder / "config.json").read_text())
    said_dtype = said.get("dtype", said.get("torch_dtype"))
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    check(f"{name} dtype", str(model.dtype) == f"torch.{said_dtype}", f"{said_dtype}, loaded as {model.dtype}")

    ids = tokenizer(UNSEEN)["input_ids"] + [tokenizer.eos_token_id]
    told = heddle.json("eval", folder, "--data", text, "--seq", len(ids) - 1)
    back = tokenizer.decode(ids, skip_special_tokens=True)
    check(f"{name} ids", told["tokens"] == len(ids) - 1 and back == UNSEEN, f"{len(ids)} ids, back as \"{back}\"")

    if model.dtype == torch.bfloat16 and hasattr(model.config, "num_experts_per_tok"):
        model.set_experts_implementation("eager")  # grouped products of bf16 want larger experts than these
    loss = loss_of(model, ids)
    if model.dtype == torch.float32:
        check(f"{name} loss", abs(loss - told["loss"]) < LOSS, f"{told['loss']:.7f} here, {loss:.7f} there")
    else:
        exact = loss_of(model.float(), ids)
        check(f"{name} loss", abs(exact - told["loss"]) < LOSS and abs(loss - told["loss"]) < LOSS_IN_BF16,
              f"{told['loss']:.7f} here, {exact:.7f} there, {loss:.4f} computed in {said_dtype}")
    prompt = tokenizer(PROMPT, return_tensors="pt")
    length = prompt["input_ids"].shape[1]
    made = model.float().generate(**prompt, max_new_tokens=24, do_sample=False)[0, length:].tolist()
    ours = heddle.json("generate", folder, "--prompt", PROMPT, "--temperature", 0, "--max-tokens", 24)
    ends = made[-1:] == [tokenizer.eos_token_id] and ours["stopped"] == "end_token"
    check(f"{name} end", made == ours["tokens"] and ends,
          f"\"{PROMPT}{ours['text']}\", {ours['stopped']}; there {len(made)} tokens, the last {made[-1:]}")


def check_models(heddle: Heddle, only: list[str] | None, work: Path, check: Checks) -> None:
    for model in sorted((HERE / "models").iterdir()):
        if (only and model.name not in only) or model.name.endswith("-beyond"):
            continue  # rope beyond its length is the same model, which short documents do not reach
        folder = work / model.name
        folder.mkdir()
        text = folder / "text.jsonl"
        text.write_text("".join(json.dumps({"text": t}) + "\n" for t in DOCUMENTS * 8))
        one = folder / "one.jsonl"
        one.write_text(json.dumps({"text": UNSEEN}) + "\n")
        tokenizer = folder / "tokenizer.json"
        heddle("tokenizer", "train", text, "--vocab", 300, "--special", "<|endoftext|>", "--out", tokenizer)
        heddle("train", write_run(folder, model / "config.json", tokenizer, 200))
        check_folder(heddle, newest_checkpoint(folder), one, model.name, check)
        heddle("convert", folder / "run", "--out", folder / "bf16", "--dtype", "bf16")
        check_folder(heddle, folder / "bf16", one, f"{model.name} bf16", check)


def check_tokenizers(heddle: Heddle, only: list[str] | None, work: Path, check: Checks) -> None:
    for source in sorted(path.parent for path in HERE.glob("*/*/cases.json")):
        if only and source.name not in only:
            continue
        folder = work / f"tokenizer-{source.name}"
        folder.mkdir()
        (folder / "text.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in DOCUMENTS * 20))
        heddle("train", write_run(folder, HERE / "models/llama/config.json", source, 1))
        opened = AutoTokenizer.from_pretrained(newest_checkpoint(folder))
        cases = json.loads((source / "cases.json").read_text())["cases"]
        differ = [c["text"] for c in cases if opened(c["text"], add_special_tokens=False)["input_ids"] != c["ids"]]
        said = json.loads((newest_checkpoint(folder) / "config.json").read_text())["eos_token_id"]
        check(f"tokenizer {source.name}", not differ and said == opened.eos_token_id,
              f"{len(cases)} texts, {len(differ)} differ {differ[:1]}; eos {said} ({opened.eos_token})")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--heddle", type=Path, default=HERE.parent.parent / "build/heddle")
    parser.add_argument("--only", nargs="+", help="these models and tokenizers")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    check, heddle = Checks(), Heddle(options.heddle.resolve())
    with tempfile.TemporaryDirectory(prefix="heddle-exports-") as work:
        check_models(heddle, options.only, Path(work), check)
        check_tokenizers(heddle, options.only, Path(work), check)
    print("all hold" if not check.failed else f"{check.failed} differ")
    return 1 if check.failed else 0


if __name__ == "__main__":
    sys.exit(main())
