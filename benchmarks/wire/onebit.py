#!/usr/bin/env python3
"""Steps of plain data parallelism and of 1-bit Adam behind freezing, over slow links, in turns: a table in Markdown.

    python3 benchmarks/wire/onebit.py [--build build] [--turns 3] [--steps 4] [--machine MACHINE.toml]

Four ranks, each in a namespace of its own. "node": a rank has one connection of 100 Mbit/s, which its three peers
share; "pair": each two ranks have 100 Mbit/s between them, three times as much in all, and the harder case. The delay
is each way: a round trip takes twice as long.
"""

import argparse
import statistics

from shaped import Bench, add_common_options, column, link_options, llama, machine_line, parameters, spread

RANKS, SEQUENCE = 4, 128
MODEL = llama(hidden=288, layers=6, heads=6, vocabulary=32000, tied=True)  # llama-15m
COMMON = [f"data.seq_len={SEQUENCE}", f"train.tokens_per_step={RANKS * SEQUENCE}", "parallel.zero=0"]
METHODS = {"plain": ["optim.name=adamw"], "1-bit": ["optim.name=onebit-adam", "optim.freeze_step=1"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_common_options(parser, share=0.4)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4, help="that count, of each turn")
    parser.add_argument("--rate", default="100mbit")
    parser.add_argument("--delay", default="50ms", help="each way")
    parser.add_argument("--links", nargs="+", default=["node", "pair"], choices=["node", "pair"])
    options = parser.parse_args()
    bench = Bench(options.build, share=options.share)
    print(machine_line(options.share))
    print(f"{RANKS} ranks, {parameters(MODEL) / 1e6:.1f}M parameters, {SEQUENCE} tokens a rank; {options.rate}, "
          f"{options.delay} each way; {options.turns} turns of {options.steps} steps.\n")
    lines = ["| link | method | seconds a step: median (least to most) | predicted | times plain |", "|---|---|---|---|---|"]
    for kind in options.links:
        link = link_options(options.rate, options.delay, shared=kind == "node")
        system = bench.predict_with(options.machine, RANKS, link)
        seconds = {method: [] for method in METHODS}
        last = {}
        for _ in range(options.turns):
            for method, settings in METHODS.items():
                # The first step makes buffers; the second is the first behind freezing.
                turn = bench.train(MODEL, RANKS, link, options.steps + 2, COMMON + settings, system)
                seconds[method] += turn.seconds(first=2)
                last[method] = turn
        plain = statistics.median(seconds["plain"])
        for method, values in seconds.items():
            lines.append(f"| {kind} | {method} | {spread(values)} | {column(last[method].predicted)} | "
                         f"{plain / statistics.median(values):.2f} |")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
