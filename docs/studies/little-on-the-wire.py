#!/usr/bin/env python3
"""Rates that sites need between them: prints the tables of little-on-the-wire.md, played beside published and beside measured, and draws
   its pictures.
   python3 docs/studies/little-on-the-wire.py build/heddle"""

import json
import math
import os
import subprocess
import sys

from step_figures import lines

HERE = os.path.dirname(os.path.abspath(__file__))
MEASURED = os.path.join(HERE, "../../benchmarks/results/utilisation-2026-11-16.json")  # of benchmarks/wire/sites.py
GBIT = 2**30 / 1e9  # the table agrees best when its Gbit are of 2^30 bits
# Douillard et al., arXiv 2501.18512, table 4: Gbit/s for a utilisation of 50, 80, 90, 95 and 99 %.
MODELS = (("1B", 24, "1e9", 100), ("10B", 48, "1e10", 800), ("100B", 108, "1e11", 4900))
METHODS = (("data parallelism", ("data-parallel",)), ("DiLoCo", ("diloco",)), ("Streaming DiLoCo", ("streaming", "--delay", "0")),
           ("and overlap", ("streaming",)), ("and 4 bits", ("streaming", "--bits", "4")))
PUBLISHED = {
    "1B": ("86.8/152.6/184.2/222.3/569.0", "1.4/6.2/13.3/23.3/86.8", "1.4/5.2/9.1/16.0/28.1", "1.4/4.3/6.2/9.1/11.0", "0.4/0.9/1.7/2.0/3.0"),
    "10B": ("104.8/222.3/222.3/268.3/471.5", "1.7/7.5/16.0/33.9/104.8", "1.7/5.2/9.1/13.3/19.3", "1.7/3.6/5.2/6.2/7.5", "0.4/0.9/1.4/1.4/1.7"),
    "100B": ("184.2/323.8/390.7/390.7/471.5", "3.0/11.0/23.3/49.4/184.2", "2.4/6.2/9.1/11.0/19.3", "1.7/3.6/4.3/5.2/5.2", "0.5/0.9/1.1/1.1/1.4"),
}


def steps_between(played, published):
    on_grid = lambda gbit: round(49 * math.log(gbit / 0.1) / math.log(1e4))
    return on_grid(played) - on_grid(published)


def show_measured():
    with open(MEASURED) as file:
        figures = json.load(file)
    rates, series = [f"{rate:g}" for rate in figures["rates"]], []
    print(f"\n| method | {' | '.join(f'{rate} Mbit/s' for rate in rates)} |\n|---{'|---' * len(rates)}|")
    for colour, (name, rows) in enumerate(figures["methods"].items()):
        pairs = zip(rows["measured"], rows["simulated"])
        print(f"| {name} | {' | '.join(f'{100 * measured:.1f} ({100 * simulated:.1f})' for measured, simulated in pairs)} |")
        series.append((f"{name}, simulated", colour, [100 * value for value in rows["simulated"]], False))
        series.append(("measured", colour, [100 * value for value in rows["measured"]], True))
    lines(f"{HERE}/utilisation-measured.svg", f"Compute utilisation of {figures['sites']} sites on shaped links, {figures['delay_ms']:g} ms "
          "each way", rates, series, 100, "%", "Mbit/s", width=860)


def main(heddle):
    off = []
    print("| model (layers, step) | method | 50 % | 80 % | 90 % | 95 % | 99 % |\n|---|---|---|---|---|---|---|")
    for model, layers, parameters, step_ms in MODELS:
        for (name, method), published in zip(METHODS, PUBLISHED[model]):
            command = [heddle, "simulate", "local", "--layers", str(layers), "--parameters", parameters, "--step-ms", str(step_ms),
                       "--from", str(0.1 * GBIT), "--to", str(1000 * GBIT), "--json", "--method", *method]
            played = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)["methods"][0]
            cells = []
            for level, value in zip(played["needed_gbit"], published.split("/")):
                off.append(steps_between(level["gbit"] / GBIT, float(value)))
                cells.append(f"{level['gbit'] / GBIT:.1f} ({value})")
            print(f"| {model} ({layers}, {step_ms / 1000:g} s) | {name} | {' | '.join(cells)} |")
    print(f"\n{len(off)} entries: {off.count(0)} on the same grid point, {sum(abs(o) == 1 for o in off)} one step away, "
          f"{sum(abs(o) > 1 for o in off)} further")
    subprocess.run([heddle, "simulate", "local", "--layers", "24", "--parameters", "1e9", "--step-ms", "100", "--codec", "e3m0",
                    "--svg", f"{HERE}/little-on-the-wire.svg"], check=True, stdout=subprocess.DEVNULL)
    show_measured()


if __name__ == "__main__":
    main(sys.argv[1])
