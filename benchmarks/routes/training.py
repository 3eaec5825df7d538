#!/usr/bin/env python3
"""A small model trained with all stages, with a third of them skipped (SkipPipe) and with swapped pairs (CheckFree+).

    python3 benchmarks/routes/training.py --heddle build/heddle --text tinyshakespeare.txt --out runs/routes

All runs have the same tokens in the same micro-batches and the same first weights. 12 layers lie on 6 ranks, so that a micro-batch with a third of the
stages skipped goes through 8 of them. Held-out losses are those of the whole model, whatever it was trained with. At the end the models are evaluated
with fewer layers, as a pipeline that leaves stages out would do: what that costs in perplexity.

A run that has ended is not repeated. Written are OUT/table.md and OUT/results.json; the exit status is 1 where a bar does not hold. Only the standard
library is needed.
"""

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))
from heddle_calls import make_tokens, parser_of, run  # noqa: E402

LAYERS, RANKS, VOCAB, SEQ, MICROBATCHES = 12, 6, 512, 64, 10
RUNS = {
    "full": ("all stages", ()),
    "skip": ("a third of the stages skipped", ("parallel.skip=0.33",)),
    "swap": ("swapped pairs in odd micro-batches", ("parallel.routes=swap",)),
}
# Of an evaluation with fewer layers.
FEWER = {"0-11": "all", "0-7": "exit behind 8", "0-1,4-5,8-11": "2 of 6 stages skipped", "0-5": "exit behind 6", "0-1,4-5,8-9": "3 of 6 stages skipped"}
LOSS_BAR = 0.03


def arguments():
    parser = parser_of(__doc__, "study")
    parser.add_argument("--steps", type=int, default=300, help="of every run")
    parser.add_argument("--width", type=int, default=64, help="of the model")
    parser.add_argument("--sequences", type=int, default=4, help="of a micro-batch")
    parser.add_argument("--lr", type=float, default=2e-3, help="highest learning rate")
    parser.add_argument("--seed", type=int, default=1, help="of weights and of the order of samples")
    parser.add_argument("--runs", default="full,skip", help=f"of {', '.join(RUNS)}, with commas between them")
    return parser.parse_args()


def prepare(options):
    """Tokenizer, tokens and config, made once for all runs."""
    folder = options.out / "data"
    make_tokens(options.heddle, options.text, VOCAB, folder)
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": options.width, "intermediate_size": options.width * 8 // 3,
              "num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": VOCAB, "max_position_embeddings": SEQ,
              "rms_norm_eps": 1e-5, "hidden_act": "silu", "initializer_range": 0.02, "tie_word_embeddings": False}
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    return folder


def train(options, folder, name):
    out = options.out / name
    settings = {
        "model.config": folder / "config.json", "data.train": folder / "text.tokens", "data.tokenizer": folder / "tokenizer.json", "data.seq_len": SEQ,
        "data.documents": "ignore", "data.holdout": 0.05, "train.steps": options.steps, "train.microbatch": options.sequences,
        "train.tokens_per_step": options.sequences * SEQ * MICROBATCHES, "train.eval_every": max(1, options.steps // 6), "optim.lr": options.lr,
        "optim.min_lr": options.lr / 10, "optim.schedule": "cosine", "optim.warmup_steps": options.steps // 15, "checkpoint.every": options.steps,
        "run.dir": out, "run.seed": options.seed, "run.threads": 1, "parallel.pp": RANKS, "parallel.schedule": "routes",
    }
    run_file = options.out / f"{name}.toml"
    run_file.write_text("")  # everything is set from outside
    words = [options.heddle, "train", run_file, "--ranks", RANKS]
    for key, value in settings.items():
        words += ["--set", f"{key}={value}"]
    for setting in RUNS[name][1]:
        words += ["--set", setting]
    if not (out / "checkpoints" / f"step-{options.steps:06d}").exists():
        run(words)
    losses, held_out = [], []
    for line in (out / "metrics.jsonl").read_text().splitlines():
        metrics = json.loads(line)
        if "loss" in metrics:
            losses.append(metrics["loss"])
        if "eval_loss" in metrics:
            held_out.append(metrics["eval_loss"])
    return {"losses": losses, "held_out": held_out}


def fewer_layers(options, folder, name):
    """Held-out perplexity with some of the layers, beside that of all."""
    found = {}
    for layers in FEWER:
        out = run([options.heddle, "eval", options.out / name, "--data", folder / "text.tokens", "--tokenizer", folder / "tokenizer.json", "--seq", SEQ,
                   "--max-tokens", 40000, "--layers", layers, "--threads", 1, "--json"])
        found[layers] = json.loads(out)
    return found


def main():
    options = arguments()
    folder = prepare(options)
    names = options.runs.split(",")
    results = {name: train(options, folder, name) for name in names}
    for name in names:
        results[name]["fewer"] = fewer_layers(options, folder, name)
    tokens = options.steps * options.sequences * SEQ * MICROBATCHES
    text = f"{LAYERS} layers of width {options.width} on {RANKS} ranks, {tokens:,} tokens of {options.text.name}, seed {options.seed}\n\n"
    text += "| trained with | training loss, last tenth | held-out loss | beside all stages |\n|---|---|---|---|\n"
    holds = True
    for name in names:
        last = results[name]["losses"][-max(1, options.steps // 10):]
        held_out = results[name]["held_out"][-1]
        ratio = held_out / results["full"]["held_out"][-1] - 1 if "full" in results else float("nan")
        holds = holds and not (name == "skip" and ratio > LOSS_BAR)
        text += f"| {RUNS[name][0]} | {sum(last) / len(last):.4f} | {held_out:.4f} | {100 * ratio:+.2f} % |\n"
    text += "\nPerplexity that fewer layers cost at inference (40,000 tokens of the text):\n\n| layers | " + " | ".join(RUNS[name][0] for name in names)
    text += " |\n|---|" + "---|" * len(names) + "\n"
    for layers, what in FEWER.items():
        cells = [results[name]["fewer"][layers] for name in names]
        text += f"| {layers} ({what}) | " + " | ".join(f"{c['perplexity']:.2f} ({100 * c['perplexity_cost']:+.1f} %)" for c in cells) + " |\n"
    (options.out / "table.md").write_text(text)
    (options.out / "results.json").write_text(json.dumps(results, indent=1))
    print(text)
    print(f"a third skipped: held-out loss within {100 * LOSS_BAR:.0f} % of all stages: {'holds' if holds else 'does not hold'}")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
