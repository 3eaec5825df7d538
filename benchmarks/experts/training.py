#!/usr/bin/env python3
"""A small model with experts: trained with ep 1 and with ep 4, and beside a dense model of as many FLOPs.

    python3 benchmarks/experts/training.py --heddle build/heddle --text tinyshakespeare.txt --out runs/experts

Every run of the list below has the same tokens in the same micro-batches, and those of one seed the same first weights of all that they
have in common. A run that has ended is not repeated, so a study that was interrupted goes on. The dense model's MLP is as wide as what a token uses of
the experts and their router together, rounded up to a multiple of 8: it never has fewer FLOPs.

Written are OUT/table.md, OUT/loss.svg and OUT/results.json:
- the held-out loss at the end, and the largest difference of a step's loss from that of ep 1;
- the most that an expert was used over the mean, of the last tenth of the steps, in the worst layer;
- FLOPs of a token's forward pass, by the products of its weights.

The exit status is 1 where a bar does not hold. Only the standard library is needed, and a heddle that runs on the machine.
"""

import json
import shutil
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))
sys.path.insert(0, str(ROOT / "docs" / "studies"))
from heddle_calls import make_tokens, parser_of, run  # noqa: E402
from step_figures import lines  # noqa: E402

WIDTH, LAYERS, HEADS, EXPERTS, CHOSEN, EXPERT_WIDTH = 128, 4, 4, 8, 2, 192
DENSE_WIDTH = -(-(3 * CHOSEN * EXPERT_WIDTH + EXPERTS) // 24) * 8
VOCAB, SEQ, MICROBATCHES = 512, 128, 4
COMMON = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": HEADS,
          "vocab_size": VOCAB, "max_position_embeddings": SEQ, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
          "initializer_range": 0.02, "tie_word_embeddings": False}
CONFIGS = {
    "experts": dict(COMMON, model_type="mixtral", architectures=["MixtralForCausalLM"], intermediate_size=EXPERT_WIDTH, num_local_experts=EXPERTS,
                    num_experts_per_tok=CHOSEN, output_router_logits=True, router_aux_loss_coef=0.02),
    "dense": dict(COMMON, model_type="llama", architectures=["LlamaForCausalLM"], intermediate_size=DENSE_WIDTH),
}
# Scores that stay small, and steps that follow gradients more than their signs: a rounding decides fewer choices.
ROUTERS, EPS = "model.router_z_loss=0.001", 1e-6
# name: what tables call it, config, ranks, settings
RUNS = {
    "ep1": ("8 experts, one rank", "experts", 1, ("parallel.dp=1", ROUTERS)),
    "ep4": ("8 experts, ep 4", "experts", 4, ("parallel.dp=4", "parallel.ep=4", ROUTERS)),
    "dense": ("dense", "dense", 1, ("parallel.dp=1",)),
}
LOSS_BAR = 1e-3  # what a step's loss with ep 4 may differ from that of one rank


def arguments():
    parser = parser_of(__doc__, "study")
    parser.add_argument("--steps", type=int, default=300, help="of every run")
    parser.add_argument("--lr", type=float, default=5e-4, help="highest learning rate")
    parser.add_argument("--sequences", type=int, default=64, help="of a step, all ranks together: a multiple of 4")
    parser.add_argument("--seeds", default="1", help="of weights and of the order of samples, with commas between them")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"), help="where runs compute, in float32")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of the run file, for all runs")
    parser.add_argument("--report", action="store_true", help="run nothing")
    options = parser.parse_args()
    options.seeds = [int(seed) for seed in options.seeds.split(",")]
    if options.sequences % MICROBATCHES != 0:
        parser.error(f"--sequences: a step has {MICROBATCHES} micro-batches, one for each rank of ep 4")
    return options


def prepare(options):
    """Tokenizer, tokens and configs, made once for all runs."""
    folder = options.out / "data"
    make_tokens(options.heddle, options.text, VOCAB, folder)
    for name, config in CONFIGS.items():
        (folder / f"{name}.json").write_text(json.dumps(config, indent=1) + "\n")
    return folder


def settings(options, name, seed, data):
    keys = {"model.config": data / f"{RUNS[name][1]}.json", "model.scale_residual_init": "true", "data.train": data / "text.tokens",
            "data.tokenizer": data / "tokenizer.json", "data.seq_len": SEQ, "data.documents": "ignore", "data.holdout": 0.1,
            "train.steps": options.steps, "train.tokens_per_step": options.sequences * SEQ, "train.microbatch": options.sequences // MICROBATCHES,
            "train.eval_every": max(1, options.steps // 6), "optim.lr": options.lr, "optim.min_lr": options.lr / 20, "optim.eps": EPS,
            "optim.warmup_steps": max(1, options.steps // 20), "checkpoint.every": 0, "checkpoint.on_exit": "false", "checkpoint.best": "false",
            "observe.console_every": 0, "observe.tensorboard": "false", "run.dir": options.out / f"{name}-{seed}", "run.name": f"{name}-{seed}",
            "run.seed": seed, "run.device": options.device, "run.threads": 1}
    return [f"{key}={value}" for key, value in keys.items()] + list(RUNS[name][3]) + options.set


def report_of(options, name, seed):
    """None where the run has not ended."""
    try:
        report = json.loads((options.out / f"{name}-{seed}" / "report.json").read_text())
        return report if report["totals"]["steps"] == options.steps else None
    except (OSError, ValueError, KeyError):
        return None


def run_missing(options):
    data = prepare(options)
    for seed in options.seeds:
        for name in RUNS:
            if report_of(options, name, seed):
                continue
            begin, folder = time.monotonic(), options.out / f"{name}-{seed}"
            shutil.rmtree(folder, ignore_errors=True)  # of a run that was interrupted
            run_file = options.out / f"{name}-{seed}.toml"
            run_file.write_text("")  # everything is set from outside
            words = [word for pair in settings(options, name, seed, data) for word in ("--set", pair)]
            run([options.heddle, "train", run_file, "--ranks", RUNS[name][2], *words])
            print(f"{name}, seed {seed}: {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)


def metrics_of(options, name, seed):
    file = options.out / f"{name}-{seed}" / "metrics.jsonl"
    return [line for line in map(json.loads, file.read_text().splitlines()) if "loss" in line]


def imbalance(lines_of_steps):
    """The most that an expert of a layer was chosen over the layer's mean, in the worst layer."""
    totals = {}
    for line in lines_of_steps:
        for layer in line["expert_load"]:
            sums = totals.setdefault(layer["layer"], [0] * len(layer["counts"]))
            totals[layer["layer"]] = [a + b for a, b in zip(sums, layer["counts"])]
    return max(max(counts) * len(counts) / sum(counts) for counts in totals.values())


def mlp_flops(name):
    """Of a token's forward pass through the MLPs or experts with their router: the rest is the same."""
    if RUNS[name][1] == "dense":
        return 2 * LAYERS * 3 * WIDTH * DENSE_WIDTH
    return 2 * LAYERS * (3 * WIDTH * CHOSEN * EXPERT_WIDTH + WIDTH * EXPERTS)


def collect(options):
    """By seed and run."""
    found = {}
    for seed in options.seeds:
        for name in RUNS:
            report = report_of(options, name, seed)
            if not report:
                sys.exit(f"{options.out / f'{name}-{seed}'} has not ended: run without --report")
            curve, steps = report["curves"]["eval_loss"], metrics_of(options, name, seed)
            run_of = {"eval": curve, "losses": [line["loss"] for line in steps], "held_out": curve["value"][-1]}
            if RUNS[name][1] == "experts":
                run_of["imbalance"] = {"first": imbalance(steps[:len(steps) // 10]), "last": imbalance(steps[-(len(steps) // 10):])}
            found.setdefault(seed, {})[name] = run_of
        base = found[seed]["ep1"]["losses"]
        found[seed]["ep4"]["apart"] = max(abs(a - b) for a, b in zip(found[seed]["ep4"]["losses"], base))
        found[seed]["ep4"]["apart_relative"] = max(abs(a / b - 1) for a, b in zip(found[seed]["ep4"]["losses"], base))
        found[seed]["ep4"]["held_out_apart"] = abs(found[seed]["ep4"]["held_out"] - found[seed]["ep1"]["held_out"])
    return found


def table(found):
    rows = ["| run | seed | held-out loss | largest difference of a step's loss from one rank | most used expert over the mean, first and last tenth of the steps | FLOPs of a token in MLPs |",
            "|---|---|---|---|---|---|"]
    for seed, runs in found.items():
        for name, made in runs.items():
            apart = f"{made['apart']:.1e}, {made['apart_relative']:.1e} of it (held-out {made['held_out_apart']:.1e})" if "apart" in made else ""
            load = f"{made['imbalance']['first']:.2f}, {made['imbalance']['last']:.2f}" if "imbalance" in made else ""
            rows.append(f"| {RUNS[name][0]} | {seed} | {made['held_out']:.4f} | {apart} | {load} | {mlp_flops(name):,} |")
    return "\n".join(rows) + "\n"


def judge(found):
    """(what, does it hold)."""
    for seed, runs in found.items():
        yield (f"seed {seed}: every loss of ep 4 within {LOSS_BAR:g} of one rank, also held out: {max(runs['ep4']['apart'], runs['ep4']['held_out_apart']):.1e}",
               max(runs["ep4"]["apart"], runs["ep4"]["held_out_apart"]) <= LOSS_BAR)
        gain = runs["dense"]["held_out"] - runs["ep1"]["held_out"]
        yield f"seed {seed}: experts below the dense model of as many FLOPs by {gain:.4f}", gain > 0


def main():
    options = arguments()
    options.out.mkdir(parents=True, exist_ok=True)
    if not options.report:
        run_missing(options)
    found = collect(options)
    said = list(judge(found))
    text = table(found) + "\n" + "".join(f"- {what}: {'holds' if holds else 'does not hold'}\n" for what, holds in said)
    (options.out / "table.md").write_text(text)
    (options.out / "results.json").write_text(json.dumps(found, indent=1) + "\n")
    runs = found[options.seeds[0]]
    series = [(RUNS[name][0], colour, runs[name]["eval"]["value"], name == "ep4") for name, colour in (("dense", 1), ("ep1", 0), ("ep4", 3))]
    lines(options.out / "loss.svg", f"Held-out loss, {options.text.name}", [str(step) for step in runs["ep1"]["eval"]["step"]], series,
          max(value for _, _, values, _ in series for value in values) * 1.05, "loss", "steps")
    print(text)
    sys.exit(0 if all(holds for _, holds in said) else 1)


if __name__ == "__main__":
    main()
