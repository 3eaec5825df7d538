#!/usr/bin/env python3
"""Steps of dp 2 x pp 2 with the presets of section compress beside plain ones, over slow links, in turns: a table in
Markdown.

    python3 benchmarks/wire/hybrid.py [--build build] [--turns 3] [--steps 3] [--rate 100mbit] [--delay 50ms] [--machine MACHINE.toml]

What plain communication takes of a step is what the step takes longer than with the same ranks on the loopback of this
machine, in the same turns. The delay is each way.
"""

import argparse
import statistics

from shaped import LOOPBACK, Bench, add_common_options, column, link_options, llama, machine_line, parameters, spread

RANKS, SEQUENCE = 4, 256
# The tables at the two ends of a pipeline are two, so that both travel through codecs.
MODEL = llama(hidden=512, layers=8, heads=8)
METHODS = {"plain": [], "mzhybrid": ["compress.preset=mzhybrid"], "zhybrid": ["compress.preset=zhybrid"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_common_options(parser, share=0.4)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3, help="that count, of each turn")
    parser.add_argument("--rate", default="100mbit", help="of each rank's connection")
    parser.add_argument("--delay", default="50ms", help="each way")
    parser.add_argument("--microbatches", type=int, default=6, help="of each replica")
    parser.add_argument("--zero", type=int, default=0)
    parser.add_argument("--also", action="append", default=[], help="another method: section.key=value (repeatable)")
    options = parser.parse_args()
    tokens = 2 * options.microbatches * SEQUENCE
    common = [f"data.seq_len={SEQUENCE}", f"train.tokens_per_step={tokens}", "parallel.dp=2", "parallel.pp=2",
              f"parallel.zero={options.zero}"]
    link = link_options(options.rate, options.delay)
    bench = Bench(options.build, share=options.share)
    print(machine_line(options.share))
    print(f"dp 2 x pp 2, {parameters(MODEL) / 1e6:.1f}M parameters, {options.microbatches} micro-batches of {SEQUENCE} "
          f"tokens, ZeRO {options.zero}; {options.rate}, {options.delay} each way; {options.turns} turns of "
          f"{options.steps} steps.\n")
    system = bench.predict_with(options.machine, RANKS, link)
    cases = {"plain, loopback": (LOOPBACK, [])}
    cases.update({method: (link, settings) for method, settings in METHODS.items()})
    cases.update({setting: (link, [setting]) for setting in options.also})
    seconds = {name: [] for name in cases}
    last = {}
    for _ in range(options.turns):
        for name, (over, settings) in cases.items():
            last[name] = bench.train(MODEL, RANKS, over, options.steps + 1, common + settings, system)
            seconds[name] += last[name].seconds()
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    print("| method | seconds a step: median (least to most) | predicted | times plain |")
    print("|---|---|---|---|")
    for name, values in seconds.items():
        predicted = None if name.endswith("loopback") else last[name].predicted
        print(f"| {name} | {spread(values)} | {column(predicted)} | {medians['plain'] / medians[name]:.2f} |")
    print(f"\nPlain communication: {100 * (1 - medians['plain, loopback'] / medians['plain']):.0f} % of the step.")


if __name__ == "__main__":
    main()
