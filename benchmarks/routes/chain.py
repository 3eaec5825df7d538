#!/usr/bin/env python3
"""Routes over six nodes joined by unequal links: planned from measured links, executed, and compared.

    sudo python3 benchmarks/routes/chain.py

Nodes are network namespaces joined by tests/links, three pairs of neighbours far from each other. Their links are measured (`heddle bench link --pairs`),
`heddle plan routes` lays the stages on them, and `heddle train` runs the plan; so are a pipeline with all stages, and routes for nodes in the order in
which they are. What is computed is little beside what is sent: it is measured on one rank, without links. The exit status is 1 where a step takes more
than 15 % longer or shorter than simulated."""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "benchmarks" / "wire"))
from shaped import LOOPBACK, VOCABULARY, Bench, llama, machine_line, spread  # noqa: E402

NODES, LAYERS, WIDTH, SEQ, SEQUENCES = 6, 5, 64, 128, 4
MESSAGE = SEQUENCES * SEQ * WIDTH * 4  # float32
HEAD = 3 * VOCABULARY / (12 * WIDTH)  # head and loss with their gradients, in forwards of a block
NEAR, BAR = {(0, 3), (1, 4), (2, 5)}, 0.15


def link_of(a, b):
    """Of two nodes: rate in Mbit/s, delay in ms each way."""
    if (min(a, b), max(a, b)) in NEAR:
        return 20, 5
    far = abs(a % 3 - b % 3)
    return (6, 15) if far == 1 else (3, 25)


def links_of(nodes):
    """Options of shaped_run for ranks on these nodes."""
    options = ["--rest", "250"]
    for i, a in enumerate(nodes):
        for j in range(i):
            rate, delay = link_of(a, nodes[j])
            options += ["--link", f"{j},{i}", f"rate={rate}mbit", f"delay={delay}ms"]
    return options


def call(command, folder):
    result = subprocess.run([str(word) for word in command], cwd=folder, capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} ended with status {result.returncode}:\n{result.stderr}")
    return result.stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build")
    parser.add_argument("--steps", type=int, default=8, help="of a run; the first two do not count")
    parser.add_argument("--microbatches", type=int, default=10, help="of a step")
    parser.add_argument("--seconds", type=float, default=30, help="of each search")
    options = parser.parse_args()
    bench = Bench(options.build)
    print(machine_line(), "\n", flush=True)
    config = llama(WIDTH, LAYERS, 4)
    usual = [f"data.seq_len={SEQ}", f"train.microbatch={SEQUENCES}", f"train.tokens_per_step={SEQUENCES * SEQ * options.microbatches}"]

    links = bench.folder / "links.json"
    links.write_text(call([bench.build / "tests/links/shaped_run", NODES, *links_of(range(NODES)), "--", bench.build / "heddle", "bench", "link", "--pairs",
                           "--bytes", MESSAGE, "--warm-up", 1, "--seconds", 2, "--json"], bench.folder))
    alone = statistics.median(bench.train(config, 1, LOOPBACK, 5, usual).seconds())
    # Of a micro-batch: a forward and a backward, which is two of them, of every stage behind the first, which has a block; and the head.
    forward = alone / options.microbatches / (3 * LAYERS + HEAD)
    print(f"A stage's forward takes {1e3 * forward:.1f} ms, a message {MESSAGE / 1e3:.0f} kB.\n", flush=True)

    def plan(words):
        return json.loads(call([bench.build / "heddle", "plan", "routes", links, *words, "--microbatches", options.microbatches, "--message-bytes", MESSAGE,
                                "--forward", forward, "--loss", HEAD, "--first", 0.1, "--seconds", options.seconds, "--starts", 4, "--json"], bench.folder))

    in_order = plan(["--nodes", " ".join(map(str, range(NODES))), "--skip", "0.33"])
    searched = plan(["--stages", NODES, "--skip", "0.33"])
    rows = [("all stages, nodes in order", in_order["full"]), ("a third skipped, nodes in order", in_order),
            ("all stages, searched", searched["full"]), ("a third skipped, searched", searched)]
    print("| | simulated | measured | |\n|---|---|---|---|")
    holds = True
    for name, found in rows:
        nodes = [stage[0] for stage in found["stages"]]
        rank = {node: i for i, node in enumerate(nodes)}
        routes = " ".join("-".join(str(rank[node]) for node in route["nodes"]) for route in found["routes"])
        turn = bench.train(config, NODES, links_of(nodes), options.steps,
                           [*usual, f"parallel.pp={NODES}", "parallel.schedule=routes", f"parallel.routes={routes}"])
        took = turn.seconds()[1:]
        apart = statistics.median(took) / found["seconds"] - 1
        holds = holds and abs(apart) <= BAR
        print(f"| {name} | {found['seconds']:.3f} s | {spread(took)} s | {100 * apart:+.1f} % |", flush=True)
    print(f"\nwithin {100 * BAR:.0f} %: {'holds' if holds else 'does not hold'}")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
