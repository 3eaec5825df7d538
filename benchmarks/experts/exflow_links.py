#!/usr/bin/env python3
"""Generation with experts divided over ranks that are joined by slow links: two exchanges of rows a layer, and one (ExFlow).

    python3 benchmarks/experts/exflow_links.py --build build --rate 20mbit --delay 10ms

A small model with one expert a token is trained on the demo language. Which experts tokens take is written down, experts are laid
on ranks by it, and the placed model continues prompts over four network namespaces of tests/links (needs root), with one and with
two exchanges in turns. A token's time is that of long texts less that of short ones, so that starting and reading the prompts
do not count. Beside it stands what `heddle plan experts` predicts for the same rate and delay, exchanges alone.

Exit status 1 where texts differ, or where one exchange is not the faster one though the planner says so (or the other way round).
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
CONFIG = {"model_type": "heddle_moe", "hidden_size": 128, "intermediate_size": 192, "moe_intermediate_size": 128, "num_hidden_layers": 6,
          "first_k_dense_replace": 0, "n_routed_experts": 16, "num_experts_per_tok": 1, "norm_topk_prob": False, "num_attention_heads": 4,
          "num_key_value_heads": 2, "max_position_embeddings": 128, "vocab_size": 512, "tie_word_embeddings": False}
SETTINGS = {"model.config": "config.json", "data.train": "text.tokens", "data.tokenizer": "tokenizer.json", "data.seq_len": 64,
            "data.documents": "ignore", "train.steps": 150, "train.tokens_per_step": 1024, "train.microbatch": 16, "optim.lr": 3e-3,
            "run.dir": "run", "run.threads": 2, "model.router_aux_loss": 0.01}
PROMPTS = 16
EXCHANGES = ("two", "one")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build", help="build folder with heddle and tests/links")
    parser.add_argument("--ranks", type=int, default=4, help="that divide the experts")
    parser.add_argument("--rate", default="20mbit", help="of every rank's link")
    parser.add_argument("--delay", default="10ms", help="one way")
    parser.add_argument("--rounds", type=int, default=3, help="turns of both, of which medians are taken")
    parser.add_argument("--tokens", default="8,40", help="lengths of the short and of the long texts")
    return parser.parse_args()


class Folder:
    def __init__(self, heddle, folder):
        self.heddle, self.folder = heddle, folder

    def call(self, *words, before=()):
        command = [str(word) for word in (*before, self.heddle, *words)]
        result = subprocess.run(command, cwd=self.folder, capture_output=True, text=True)
        if result.returncode != 0:
            sys.exit(f"{' '.join(command)} ended with status {result.returncode}:\n{result.stderr}")
        return result.stdout

    def make_model(self, ranks):
        """Trained, and its experts placed."""
        (self.folder / "config.json").write_text(json.dumps(CONFIG))
        (self.folder / "run.toml").write_text("")
        self.call("demo-text", "--bytes", 400000, "--out", "text.jsonl")
        self.call("tokenizer", "train", "text.jsonl", "--vocab", CONFIG["vocab_size"], "--out", "tokenizer.json")
        self.call("tokenize", "text.jsonl", "--tokenizer", "tokenizer.json", "--out", "text.tokens")
        settings = [word for key, value in SETTINGS.items() for word in ("--set", f"{key}={value}")]
        self.call("train", "run.toml", "--fresh", *settings)
        self.call("eval", "run", "--data", "text.tokens", "--routing-trace", "trace.bin")
        self.call("plan", "experts", "trace.bin", "--ranks", ranks, "--out", "placement.json")
        self.call("convert", "run", "--placement", "placement.json", "--out", "placed")
        texts = [json.loads(line)["text"] for line in (self.folder / "text.jsonl").read_text().splitlines()]
        starts = [" ".join(text.split()[:6]) for text in texts if len(text.split()) > 12]
        (self.folder / "prompts.txt").write_text("\n".join(starts[:PROMPTS]) + "\n")

    def predicted(self, ranks, options):
        megabit, milliseconds = float(options.rate.removesuffix("mbit")), float(options.delay.removesuffix("ms"))
        said = json.loads(self.call("plan", "experts", "trace.bin", "--ranks", ranks, "--model", "config.json", "--latency-us",
                                    1e3 * milliseconds, "--gbytes", megabit / 8e3, "--sequences", PROMPTS // ranks, "--dtype", "f32", "--json"))
        return said["generation"]

    def generate(self, options, exchanges, tokens):
        before = (options.build / "tests/links/shaped_run", options.ranks, "--rest", "250", "--node", f"rate={options.rate}", "--link",
                  f"delay={options.delay}", "--")
        return json.loads(self.call("generate", "placed", "--prompts", "prompts.txt", "--max-tokens", tokens, "--temperature", 0, "--threads", 1,
                                    "--set", f"parallel.ep={options.ranks}", "--exchanges", exchanges, "--json", before=before))


def main():
    options = arguments()
    options.build = options.build.resolve()
    short, long = map(int, options.tokens.split(","))
    with tempfile.TemporaryDirectory(prefix="heddle-exflow-") as place:
        folder = Folder(options.build / "heddle", Path(place))
        folder.make_model(options.ranks)
        predicted = {name: folder.predicted(options.ranks, options)[key]["seconds"]
                     for name, key in (("two", "two_exchanges"), ("one", "one_exchange"))}
        seconds, texts = {name: [] for name in EXCHANGES}, {}
        for turn in range(options.rounds):
            for name in EXCHANGES if turn % 2 == 0 else EXCHANGES[::-1]:
                made = {tokens: folder.generate(options, name, tokens) for tokens in (short, long)}
                seconds[name].append((made[long]["seconds"] - made[short]["seconds"]) / (long - short))
                texts[name] = [one["text"] for one in made[long]["texts"]]
                print(f"turn {turn + 1}, {name}: {1e3 * seconds[name][-1]:.1f} ms a token", file=sys.stderr, flush=True)
    measured = {name: statistics.median(values) for name, values in seconds.items()}
    print(f"{options.ranks} ranks, {options.rate}, {options.delay}: ms a token")
    for name in EXCHANGES:
        print(f"  exchanges a layer: {name}: {1e3 * measured[name]:.1f}, predicted {1e3 * predicted[name]:.1f}")
    ratios = [times["one"] / times["two"] for times in (measured, predicted)]
    print(f"  one over two: {ratios[0]:.3f}, predicted {ratios[1]:.3f}; texts {'equal' if texts['one'] == texts['two'] else 'differ'}")
    return texts["one"] == texts["two"] and (ratios[0] < 1) == (ratios[1] < 1)


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
