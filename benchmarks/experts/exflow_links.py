#!/usr/bin/env python3
"""Generation with experts divided over ranks that are joined by slow links: two exchanges of rows a layer, and one (ExFlow).

    python3 benchmarks/experts/exflow_links.py --build build --rate 20mbit --delay 10ms

A small model with one expert a token is trained on the demo language. Which experts tokens take is written down, experts are laid
on ranks by it, and the placed model continues prompts over four network namespaces of tests/links (needs root), with one and with
two exchanges in turns. Prompts begin anywhere in texts and words are drawn, so that sequences take different experts, as those of
a trace do: with the likeliest words all of them would soon say the same, and all rows would go to one rank. A token's time is the
mean from the first token on. Beside it stands what `heddle plan experts` predicts for the same rate and delay, exchanges alone;
what ranks compute meanwhile is the time of the same texts over links without rate and delay.

Links have queues for all messages of a call (--queue): shorter ones drop packets, which are sent again. Ranks run before other
programs (SCHED_RR) unless --polite.

Exit status 1 where texts differ, or where one exchange is not the faster one though the planner says so (or the other way round).
"""

import argparse
import json
import random
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
    parser.add_argument("--queue", default="1s", help="how long a packet may wait for its link before it is dropped")
    parser.add_argument("--rounds", type=int, default=3, help="turns of both, of which medians are taken")
    parser.add_argument("--tokens", type=int, default=32, help="of each text")
    parser.add_argument("--polite", action="store_true", help="ranks share cores with other programs alike")
    parser.add_argument("--folder", type=Path, help="with the model of an earlier run, or where to leave it")
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
        draws = random.Random(1)
        starts = []
        for words in (text.split() for text in texts):
            if len(words) > 24 and len(starts) < PROMPTS:
                first = draws.randrange(0, 8)
                starts.append(" ".join(words[first:first + draws.randrange(6, 16)]))
        (self.folder / "prompts.txt").write_text("\n".join(starts) + "\n")

    def predicted(self, ranks, options):
        megabit, milliseconds = float(options.rate.removesuffix("mbit")), float(options.delay.removesuffix("ms"))
        said = json.loads(self.call("plan", "experts", "trace.bin", "--ranks", ranks, "--model", "config.json", "--latency-us",
                                    1e3 * milliseconds, "--gbytes", megabit / 8e3, "--sequences", PROMPTS // ranks, "--dtype", "f32", "--json"))
        return said["generation"]

    def generate(self, options, exchanges, node, link):
        """The texts and seconds a token."""
        before = [options.build / "tests/links/shaped_run", options.ranks, "--rest", "250", "--node", *node, "--link", *link, "--"]
        if not options.polite:
            before = ["chrt", "--rr", "1", *before]
        made = json.loads(self.call("generate", "placed", "--prompts", "prompts.txt", "--max-tokens", options.tokens, "--temperature", 1,
                                    "--threads", 1, "--set", f"parallel.ep={options.ranks}", "--exchanges", exchanges, "--json",
                                    before=before))
        times = made["token_seconds"]
        return [one["text"] for one in made["texts"]], (times[-1] - times[0]) / (len(times) - 1)


def main():
    options = arguments()
    options.build = options.build.resolve()
    with tempfile.TemporaryDirectory(prefix="heddle-exflow-") as place:
        folder = Folder(options.build / "heddle", options.folder.resolve() if options.folder else Path(place))
        folder.folder.mkdir(exist_ok=True)
        if not (folder.folder / "prompts.txt").exists():
            folder.make_model(options.ranks)
        predicted = {name: folder.predicted(options.ranks, options)[key]["seconds"]
                     for name, key in (("two", "two_exchanges"), ("one", "one_exchange"))}
        seconds, computing, texts = {name: [] for name in EXCHANGES}, {name: [] for name in EXCHANGES}, {}
        for turn in range(options.rounds):
            for name in EXCHANGES if turn % 2 == 0 else EXCHANGES[::-1]:
                texts[name], time = folder.generate(options, name, (f"rate={options.rate}", f"queue={options.queue}"),
                                                    (f"delay={options.delay}", f"queue={options.queue}"))
                seconds[name].append(time)
                computing[name].append(folder.generate(options, name, ("rate=none",), ("delay=0ms",))[1])
                print(f"turn {turn + 1}, {name}: {1e3 * time:.1f} ms a token, {1e3 * computing[name][-1]:.1f} without links",
                      file=sys.stderr, flush=True)
    measured = {name: statistics.median(values) for name, values in seconds.items()}
    print(f"{options.ranks} ranks, {options.rate}, {options.delay}, queues of {options.queue}: ms a token")
    for name in EXCHANGES:
        rest = statistics.median(computing[name])
        print(f"  exchanges a layer: {name}: {1e3 * measured[name]:.1f}, of it without links {1e3 * rest:.1f}; predicted exchanges "
              f"{1e3 * predicted[name]:.1f}, exchanges measured over predicted {(measured[name] - rest) / predicted[name]:.3f}")
    ratios = [times["one"] / times["two"] for times in (measured, predicted)]
    print(f"  one over two: {ratios[0]:.3f}, predicted {ratios[1]:.3f}; texts {'equal' if texts['one'] == texts['two'] else 'differ'}")
    return texts["one"] == texts["two"] and (ratios[0] < 1) == (ratios[1] < 1)


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
