#!/usr/bin/env python3
"""Loss against bytes: the same model on the same tokens, trained with every way of sending less.

    python3 benchmarks/wire/loss_study.py --heddle build/heddle --text tinyshakespeare.txt --out runs/loss
    python3 benchmarks/wire/loss_study.py --heddle build/heddle --text demo --model 35m --device cuda --jobs 6 --out runs/loss-demo

Every method of the list below is trained once for each seed, in a folder of its own (OUT/METHOD-SEED). A run that has ended is not
repeated, so a study that was interrupted goes on, and other seeds or methods can be added. The recipe (model, batch, learning rate,
steps) is the same for all of them and is kept in OUT/recipe.json; another one needs another folder. --set changes any key of the run
file for all methods, --outer-lr and --outer-momentum the outer steps of sites; all are part of the recipe. --report only collects what is there.

Written are OUT/table.md, OUT/loss.svg and OUT/results.json:
- the held-out loss at the end (with sites: of the outer weights), mean and spread over seeds;
- its difference to plain training with the same seed, hence the same first weights and the same tokens;
- bytes that the first rank sends in a step, mean over the run, on all axes: counted, from report.json.

The judged rows and their bars are in BARS and ORDER; the exit status is 1 where a complete study does not keep them. Only the standard
library is needed, and a heddle that runs on the machine.
"""

import argparse
import concurrent.futures
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "docs" / "studies"))
from step_figures import scatter  # noqa: E402

LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
         "attention_bias": False, "mlp_bias": False, "initializer_range": 0.02, "tie_word_embeddings": False}


def llama(width, mlp, layers, heads):
    return dict(LLAMA, hidden_size=width, intermediate_size=mlp, num_hidden_layers=layers, num_attention_heads=heads,
                num_key_value_heads=heads, head_dim=width // heads)


# Tables are not tied: of a tied one both ends of a pipeline have a gradient, which travels plainly, and presets would compress less.
MODELS = {
    "small": {"config": llama(128, 384, 4, 4), "vocab": 512, "seq": 128, "sequences": 8, "lr": 3e-3, "steps": 600},
    "llama-15m": {"config": llama(288, 768, 6, 6), "vocab": 1024, "seq": 256, "sequences": 16, "lr": 2e-3, "steps": 1000},
    "35m": {"config": llama(512, 2048, 6, 8), "vocab": 2048, "seq": 256, "sequences": 16, "lr": 1e-3, "steps": 1000},
}
DEMO_BYTES = 6  # for each token of a run: more than a token has, so that none comes twice

# Meshes: what travels, and over what. Both are two replicas; with a pipeline there are also messages between stages, and with ZeRO 1
# gathered weights, which is all that the presets of [compress] can compress (tp aside).
PAIR = ("parallel.dp=2", "parallel.zero=0")
STAGES = ("parallel.dp=2", "parallel.pp=2", "parallel.zero=1")


def sites(count, every, *more):
    return (f"parallel.sites={count}", "parallel.dp=1", f"outer.every={every}", *more)


STREAMING = ("outer.fragments=2", "outer.delay=1", "outer.mix=0.5", "outer.codec=e3m0:256")
WHOLE = ("outer.fragments=1", "outer.delay=0", "outer.mix=0")  # all at once, and sites go on from there
# name: what tables call it, ranks, the plain run with the same traffic, settings
METHODS = {
    "plain": ("plain, dp 2", 2, "plain", PAIR),
    "plain-stages": ("plain, dp 2 x pp 2", 4, "plain-stages", STAGES),
    "onebit": ("1-bit Adam", 2, "plain", (*PAIR, "optim.name=onebit-adam")),
    "mzhybrid": ("mzhybrid", 4, "plain-stages", (*STAGES, "compress.preset=mzhybrid")),
    "zhybrid": ("zhybrid", 4, "plain-stages", (*STAGES, "compress.preset=zhybrid")),
    "naive": ("naive", 4, "plain-stages", (*STAGES, "compress.preset=naive")),
    "zfp8": ("zfp:8 in 4 x 4 blocks everywhere, feedback", 4, "plain-stages",
             (*STAGES, *(f"compress.{kind}=zfp:8" for kind in ("gradients", "weights", "pipeline")))),
    "sign": ("1-bit gradients, AdamW", 2, "plain", (*PAIR, "compress.gradients=sign")),
    "int8": ("int8 gradients", 2, "plain", (*PAIR, "compress.gradients=int8:128")),
    "int4": ("int4 gradients", 2, "plain", (*PAIR, "compress.gradients=int4:128")),
    "diloco-30": ("DiLoCo, H 30, float32", 2, "plain", sites(2, 30, *WHOLE, "outer.codec=none")),
    "streaming-30": ("Streaming DiLoCo, H 30", 2, "plain", sites(2, 30, *STREAMING)),
    "streaming-100": ("Streaming DiLoCo, H 100", 2, "plain", sites(2, 100, *STREAMING)),
    "streaming-30-m4": ("Streaming, H 30, 4 sites", 4, "plain", sites(4, 30, *STREAMING)),
    "streaming-100-m4": ("Streaming, H 100, 4 sites", 4, "plain", sites(4, 100, *STREAMING)),
    "topk-30": ("top-k of 1/64, H 30", 2, "plain", sites(2, 30, *WHOLE, "outer.codec=topk:64")),
}
# Percent above plain that a method may have, and that a control must have.
BARS = {"onebit": 0.5, "mzhybrid": 0.5, "zhybrid": 0.5, "streaming-30": 0.5, "streaming-100": 1.5}
CONTROLS = ("naive", "sign")
ORDER = (("plain", "streaming-30", "streaming-100", "streaming-100-m4"), ("streaming-30", "streaming-30-m4"))
COLOURS = {"plain": 5, "plain-stages": 5, "naive": 1, "sign": 1, "zfp8": 2, "onebit": 4, "mzhybrid": 2, "zhybrid": 2, "int8": 3, "int4": 3}
# What a rank sends of a call's whole tensor, by the number of ranks; of what it receives, nothing.
SENT = {"all_reduce": lambda n: 2 * (n - 1) / n, "send": lambda n: 1, "recv": lambda n: 0, "barrier": lambda n: 0}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--heddle", default=str(ROOT / "build" / "heddle"), help="the program")
    parser.add_argument("--out", type=Path, required=True, help="folder of the study")
    parser.add_argument("--text", default="demo", help="a text file, or demo: the language of `make demo`")
    parser.add_argument("--model", default="small", choices=sorted(MODELS), help="what is trained")
    parser.add_argument("--methods", default=",".join(METHODS), help="which, with commas between them")
    parser.add_argument("--seeds", default="1,2,3", help="of weights and of the order of samples")
    parser.add_argument("--steps", type=int, help="of every run; the model's own without it")
    parser.add_argument("--lr", type=float, help="highest learning rate; the model's own without it")
    parser.add_argument("--sequences", type=int, help="of a step, all ranks together: a multiple of 8; the model's own without it")
    parser.add_argument("--vocab", type=int, help="tokens of the tokenizer; the model's own without it")
    parser.add_argument("--outer-lr", type=float, default=1.0, help="of sites that exchange weights, but not with topk")
    parser.add_argument("--outer-momentum", type=float, default=0.2, help="of the same")
    parser.add_argument("--freeze", type=float, default=0.2, help="share of the steps behind which 1-bit Adam freezes")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"), help="where runs compute")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of a rank")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--seconds", type=float, default=math.inf, help="start no run after so long")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of the run file, for all methods")
    parser.add_argument("--report", action="store_true", help="run nothing")
    options = parser.parse_args()
    options.methods = options.methods.split(",")
    options.seeds = [int(seed) for seed in options.seeds.split(",")]
    unknown = [name for name in options.methods if name not in METHODS]
    if unknown:
        parser.error(f"no method {', '.join(unknown)}; there are {', '.join(METHODS)}")
    for key in ("steps", "lr", "sequences", "vocab"):
        if getattr(options, key) is None:
            setattr(options, key, MODELS[options.model][key])
    if options.sequences % 8 != 0:
        parser.error("--sequences: four sites, or two replicas with two micro-batches, need a multiple of 8")
    return options


def run(command, log=None):
    """Ends the study where a command fails that all runs need."""
    result = subprocess.run([str(word) for word in command], capture_output=log is None, text=True, stdout=log, stderr=log)
    if log is None and result.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} ended with status {result.returncode}:\n{result.stderr}")
    return result.returncode


def keep_recipe(options):
    """What all runs of a folder have in common; refuses a folder that has another."""
    recipe = {key: getattr(options, key) for key in ("text", "model", "steps", "lr", "sequences", "vocab", "outer_lr", "outer_momentum", "freeze", "device", "set")}
    recipe["text"] = Path(options.text).name
    file = options.out / "recipe.json"
    if file.exists():
        kept = json.loads(file.read_text())
        changed = [f"{key} {kept.get(key)} -> {value}" for key, value in recipe.items() if kept.get(key) != value]
        if changed:
            sys.exit(f"{options.out} is a study of another recipe ({'; '.join(changed)}): give it another --out")
    file.write_text(json.dumps(recipe, indent=1) + "\n")
    return recipe


def prepare(options):
    """Text, tokenizer, tokens and config.json, made once for all runs."""
    folder = options.out / "data"
    folder.mkdir(parents=True, exist_ok=True)
    text, tokenizer, tokens = folder / "text.jsonl", folder / "tokenizer.json", folder / "text.tokens"
    if options.text != "demo":
        text = Path(options.text)
    elif not text.exists():
        needed = DEMO_BYTES * options.steps * options.sequences * MODELS[options.model]["seq"]
        run([options.heddle, "demo-text", "--bytes", max(2_000_000, needed), "--out", text])
    if not tokens.exists():
        run([options.heddle, "tokenizer", "train", text, "--vocab", options.vocab, "--special", "<|endoftext|>", "--out", tokenizer])
        run([options.heddle, "tokenize", text, "--tokenizer", tokenizer, "--out", tokens])
    model = MODELS[options.model]
    config = dict(model["config"], vocab_size=options.vocab, max_position_embeddings=model["seq"])
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    return folder


def settings(options, name, seed, data, folder):
    model = MODELS[options.model]
    warmup = max(1, options.steps // 20)
    keys = {"model.config": data / "config.json", "model.scale_residual_init": "true", "data.train": data / "text.tokens",
            "data.tokenizer": data / "tokenizer.json", "data.seq_len": model["seq"], "data.documents": "ignore",
            "data.holdout": 0.1 if options.text != "demo" else 0.01, "train.steps": options.steps,
            "train.tokens_per_step": options.sequences * model["seq"], "train.microbatch": options.sequences // 4,
            "train.eval_every": max(1, options.steps // 4), "optim.lr": options.lr, "optim.min_lr": options.lr / 20,
            "optim.warmup_steps": warmup, "checkpoint.every": 0, "checkpoint.on_exit": "false", "checkpoint.best": "false",
            "observe.console_every": 0, "observe.tensorboard": "false", "run.dir": folder, "run.name": f"{name}-{seed}", "run.seed": seed,
            "run.device": options.device, "run.threads": options.threads}
    pairs = [f"{key}={value}" for key, value in keys.items()] + list(METHODS[name][3])
    if name == "onebit":
        pairs.append(f"optim.freeze_step={max(warmup + 1, round(options.freeze * options.steps))}")
    if any(pair.startswith("outer.") for pair in pairs) and name != "topk-30":
        pairs += [f"outer.lr={options.outer_lr}", f"outer.momentum={options.outer_momentum}"]
    return pairs + options.set


def is_finished(folder, steps):
    try:
        return json.loads((folder / "report.json").read_text())["totals"]["steps"] == steps
    except (OSError, ValueError, KeyError):
        return False


def train(options, name, seed, data):
    """One run; what to say of it."""
    folder = options.out / f"{name}-{seed}"
    begin = time.monotonic()
    shutil.rmtree(folder, ignore_errors=True)  # of a run that was interrupted
    run_file = options.out / f"{name}-{seed}.toml"
    run_file.write_text("")  # everything is set from outside
    words = [word for pair in settings(options, name, seed, data, folder) for word in ("--set", pair)]
    with open(options.out / f"{name}-{seed}.log", "w") as log:
        status = run([options.heddle, "train", run_file, "--ranks", METHODS[name][1], *words], log)
    if status != 0:
        return f"{name}, seed {seed}: status {status}, see {log.name}"
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    return f"{name}, seed {seed}: {loss_of(folder):.4f} in {time.monotonic() - begin:.0f} s"


def run_grid(options):
    data, begin = prepare(options), time.monotonic()
    grid = [(name, seed) for seed in options.seeds for name in options.methods if not is_finished(options.out / f"{name}-{seed}", options.steps)]

    def one(cell):
        if time.monotonic() - begin > options.seconds:
            return f"{cell[0]}, seed {cell[1]}: left for the next time"
        return train(options, *cell, data)

    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for done, said in enumerate(pool.map(one, grid), 1):
            print(f"{done}/{len(grid)} {said}", file=sys.stderr, flush=True)


def loss_of(folder):
    """The last evaluation; infinity where it is not finite."""
    last = json.loads((folder / "report.json").read_text())["curves"]["eval_loss"]["value"][-1]
    return math.inf if last is None else last


def ranks_of(axis, name):
    keys = dict(pair.split("=") for pair in METHODS[name][3])
    return int(keys.get({"site": "parallel.sites"}.get(axis, f"parallel.{axis}"), 1))


def sent_of(report, name):
    """Bytes that the first rank sends in a step, by axis."""
    steps, sent = report["totals"]["steps"], {}
    for axis, operations in report["communication"].items():
        ranks = ranks_of(axis, name)
        group = METHODS[name][1] if ranks == 1 else ranks  # "several axes", "pp ends": at most all of them; a few numbers each
        for operation, counts in operations.items():
            share = SENT.get(operation, lambda n: (n - 1) / n)(group)
            sent[axis] = sent.get(axis, 0) + share * counts["counted"]["wire_bytes"] / steps
    return sent


def collect(options):
    """By method: losses and lowest losses by seed, bytes by axis (of the first seed: they do not depend on it, but for `lossless`)."""
    found = {}
    for name in METHODS:
        runs = {}
        for folder in sorted(options.out.glob(f"{name}-*")):
            seed = folder.name[len(name) + 1:]
            if seed.isdigit() and is_finished(folder, options.steps):
                report = json.loads((folder / "report.json").read_text())
                finite = [value for value in report["curves"]["eval_loss"]["value"] if value is not None]
                runs[int(seed)] = {"loss": loss_of(folder), "lowest": min(finite, default=math.inf), "sent": sent_of(report, name),
                                   "seconds": report["totals"]["seconds"]}
        if runs:
            found[name] = runs
    return found


def with_spread(values, digits, sign=""):
    """Mean and standard deviation; of a single value only that."""
    mean = f"{statistics.mean(values):{sign}.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.{digits}f}"


def above(found, name, base="plain"):
    """Percent above plain of the same seed, for each seed that has both."""
    if base not in found:
        return []
    both = sorted(set(found[name]) & set(found[base]))
    return [100 * (found[name][seed]["loss"] / found[base][seed]["loss"] - 1) for seed in both]


def bytes_of(found, name):
    return sum(statistics.mean(run["sent"].get(axis, 0) for run in found[name].values()) for axis in next(iter(found[name].values()))["sent"])


def table(options, found):
    tokens = options.sequences * MODELS[options.model]["seq"]
    lines = ["| method | seeds | held-out loss | above plain, % | bytes sent a step | for each token | of plain |", "|---|---|---|---|---|---|---|"]
    for name, runs in found.items():
        losses, gaps, base = [run["loss"] for run in runs.values()], above(found, name), METHODS[name][2]
        sent = bytes_of(found, name)
        gap = "" if name == "plain" or not gaps else with_spread(gaps, 2, "+")
        share = "" if base not in found or name == base else f"1 / {bytes_of(found, base) / sent:.3g}"
        lines.append(f"| {METHODS[name][0]} | {len(runs)} | {with_spread(losses, 4)} | {gap} | {sent:,.0f} "
                     f"| {sent / tokens:,.4g} | {share} |")
    return "\n".join(lines)


def judge(found):
    """(what, does it hold) for all that can be judged."""
    mean = {name: statistics.mean(gaps) for name in found if (gaps := above(found, name))}
    said = [(f"{METHODS[name][0]}: {mean[name]:+.2f} % of at most {bar} %", mean[name] <= bar) for name, bar in BARS.items() if name in mean]
    # Visibly: more than methods may be, and clear of what seeds do.
    said += [(f"{METHODS[name][0]}, a control: {mean[name]:+.2f} %, visibly worse", mean[name] > 0.5 and min(above(found, name)) > 0)
             for name in CONTROLS if name in mean]
    for chain in ORDER:
        for less, more in zip(chain, chain[1:]):
            if less in mean and more in mean:
                said.append((f"{METHODS[less][0]} ({mean[less]:+.2f} %) <= {METHODS[more][0]} ({mean[more]:+.2f} %)", mean[less] <= mean[more]))
    return said


def draw(options, found):
    tokens = options.sequences * MODELS[options.model]["seq"]
    points = []
    for name, runs in found.items():
        losses = [run["loss"] for run in runs.values() if math.isfinite(run["loss"])]
        if losses:
            points.append((METHODS[name][0], COLOURS.get(name, 0), METHODS[name][2] == "plain-stages", bytes_of(found, name) / tokens,
                           statistics.mean(losses), min(losses), max(losses)))
    text = "the demo language" if options.text == "demo" else Path(options.text).name
    scatter(options.out / "loss.svg", f"Held-out loss after the same {options.steps * tokens / 1e6:.2g} M tokens of {text}, {options.model}", points,
            "loss", "bytes that a rank sends for each token (rings: dp 2 x pp 2)")


def main():
    options = arguments()
    options.out.mkdir(parents=True, exist_ok=True)
    recipe = keep_recipe(options)
    if not options.report:
        run_grid(options)
    found = collect(options)
    if not found:
        sys.exit(f"{options.out} has no run that has ended")
    said = judge(found)
    text = table(options, found) + "\n\n" + "".join(f"- {what}: {'holds' if holds else 'does not hold'}\n" for what, holds in said)
    (options.out / "table.md").write_text(text)
    (options.out / "results.json").write_text(json.dumps({"recipe": recipe, "runs": found}, indent=1) + "\n")
    draw(options, found)
    print(text)
    is_complete = all(seed in found.get(name, {}) for name in METHODS for seed in options.seeds)
    sys.exit(1 if is_complete and not all(holds for _, holds in said) else 0)


if __name__ == "__main__":
    main()
