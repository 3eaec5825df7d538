#!/usr/bin/env python3
"""How much of their time sites compute that train one model over slow links, by method and rate, measured beside
simulated: a table in Markdown, and with --out a file for docs/studies/little-on-the-wire.py.

    python3 benchmarks/wire/sites.py [--build build] [--sites 2] [--rates 5 20 50 200 1000] [--delay 50] [--turns 1] [--machine MACHINE.toml]

A site is a process of one thread with a connection of the given rate (Mbit/s); the delay (ms) is each way. Utilisation
is what a step takes before sites meet, on this machine's loopback and in the same turns, over what it takes on the
link, on average over whole windows of --every steps; of several turns the median. Simulated: `heddle simulate local` with that step, the bytes of a
value as they travel, and the rate less what headers take.
"""

import argparse
import json
import statistics
import subprocess
from pathlib import Path

from shaped import LOOPBACK, Bench, add_common_options, column, link_options, llama, machine_line, parameters, spread

CONTENT = 1448 / 1500  # of a packet of TCP over IPv4
STEPS_ALONE = 20


def diloco(sites, every):
    """Settings: everything at once, in float32, and waited for."""
    return [f"parallel.sites={sites}", "parallel.dp=1", f"outer.every={every}", "outer.fragments=1", "outer.delay=0",
            "outer.mix=0", "outer.codec=none"]


class Methods:
    """Names, settings of the run file and options of `simulate local`."""

    def __init__(self, options):
        every = ["--every", options.every]
        apart = diloco(options.sites, options.every)
        self.settings = {
            "data parallelism": [f"parallel.dp={options.sites}", "parallel.zero=0"],
            "DiLoCo": apart,
            "Streaming DiLoCo": apart + [f"outer.fragments={options.fragments}", f"outer.delay={options.steps_under_way}",
                                         "outer.mix=0.5", "outer.codec=e3m0"],
        }
        self.simulated = {
            "data parallelism": ["--method", "data-parallel", "--bits", 32],
            "DiLoCo": ["--method", "diloco", "--bits", 32, *every],
            "Streaming DiLoCo": ["--method", "streaming", "--codec", "e3m0", *every, "--fragments", options.fragments,
                                 "--delay", options.steps_under_way],
        }
        # A window that begins here has as many ends of exchanges as begins of them.
        self.first = {"data parallelism": 1, "DiLoCo": 2, "Streaming DiLoCo": max(2, options.steps_under_way)}
        self.steps = {name: options.plain_steps if name == "data parallelism" else options.windows * options.every
                      for name in self.settings}


def simulate(options, method, config, step_seconds, rate):
    command = [options.build / "heddle", "simulate", "local", "--layers", config["num_hidden_layers"], "--parameters",
               parameters(config), "--step-ms", 1e3 * step_seconds, "--sites", options.sites, "--latency-ms",
               options.delay, "--gbit", 1e-3 * rate * CONTENT, "--json", *method]
    said = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=True).stdout
    return json.loads(said)["methods"][0]["at"]["utilisation"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_common_options(parser, share=0.75)
    parser.add_argument("--sites", type=int, default=2)
    parser.add_argument("--rates", type=float, nargs="+", default=[5, 20, 50, 200, 1000], help="Mbit/s")
    parser.add_argument("--delay", type=float, default=50, help="ms each way")
    parser.add_argument("--every", type=int, default=30)
    parser.add_argument("--fragments", type=int, default=3)
    parser.add_argument("--steps-under-way", type=int, default=5, help="outer.delay of Streaming DiLoCo")
    parser.add_argument("--methods", nargs="+", choices=["data", "diloco", "streaming"],
                        default=["data", "diloco", "streaming"])
    parser.add_argument("--tokens", type=int, default=256, help="of a site in a step")
    parser.add_argument("--hidden", type=int, default=288)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--vocabulary", type=int, default=1024)
    parser.add_argument("--windows", type=int, default=1, help="that count, of each turn")
    parser.add_argument("--plain-steps", type=int, default=3, help="the same of data parallelism")
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--out", type=Path, help="file for the figures")
    options = parser.parse_args()
    config = llama(options.hidden, options.layers, 6, options.vocabulary, tied=True)
    methods = Methods(options)
    chosen = [name for name in methods.settings if name.lower().split()[0] in options.methods]
    common = [f"data.seq_len={min(256, options.tokens)}", f"train.tokens_per_step={options.sites * options.tokens}"]
    bench = Bench(options.build, share=options.share)
    print(machine_line(options.share))
    print(f"{options.sites} sites of one rank, {parameters(config) / 1e6:.1f}M parameters, {options.tokens} tokens a site "
          f"and step; {options.delay:g} ms each way; DiLoCo every {options.every} steps, Streaming DiLoCo in "
          f"{options.fragments} fragments with {options.steps_under_way} steps under way and 4 bits; {options.turns} turns.\n")
    links = {rate: link_options(f"{rate:g}mbit", f"{options.delay:g}ms") for rate in options.rates}
    systems = {rate: bench.predict_with(options.machine, options.sites, link) for rate, link in links.items()}
    alone, taken, predicted = [], {}, {}
    for _ in range(options.turns):
        apart = common + diloco(options.sites, STEPS_ALONE + 1)
        alone.append(statistics.mean(bench.train(config, options.sites, LOOPBACK, STEPS_ALONE + 1, apart).seconds()[:-1]))
        for rate in options.rates:
            for name in chosen:
                first, steps = methods.first[name], methods.steps[name]
                turn = bench.train(config, options.sites, links[rate], first + steps, common + methods.settings[name],
                                   systems[rate])
                taken.setdefault((name, rate), []).append(statistics.mean(turn.seconds(first)))
                predicted[name, rate] = turn.predicted
    step = statistics.median(alone)
    print(f"A step without any exchange takes {spread(alone)} s.\n")
    print("| method | Mbit/s | seconds a step | predicted | utilisation | simulated |")
    print("|---|---|---|---|---|---|")
    figures = {"step_seconds": step, "sites": options.sites, "delay_ms": options.delay, "rates": options.rates, "methods": {}}
    for name in chosen:
        rows = figures["methods"][name] = {"measured": [], "simulated": []}
        for rate in options.rates:
            seconds = statistics.median(taken[name, rate])
            simulated = simulate(options, methods.simulated[name], config, step, rate)
            rows["measured"].append(step / seconds)
            rows["simulated"].append(simulated)
            print(f"| {name} | {rate:g} | {spread(taken[name, rate])} | {column(predicted[name, rate])} | {100 * step / seconds:.1f} % | "
                  f"{100 * simulated:.1f} % |")
    if options.out:
        options.out.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
