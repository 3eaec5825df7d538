#!/usr/bin/env python3
"""Layers of experts on the two clusters of the FSMoE paper: what each part of its schedule gains. Prints the tables of
   experts-schedules.md and draws experts-schedules.svg.
   python3 docs/studies/experts-schedules.py build/heddle"""

import itertools
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

HERE = os.path.dirname(os.path.abspath(__file__))
METHODS = ("pipelined", "dense", "windows", "lanes")
# Lines of figure 5 of the paper: ms, and ms per element or multiplication.
A = {"exchange": (2.87e-1, 2.21e-7), "gather": (3.37e-1, 2.32e-6), "scatter": (3.95e-1, 2.34e-7), "sum": (5.11e-1, 4.95e-6),
     "product": (4.26e-2, 2.29e-11), "shards": 8, "lengths": (512, 1024, 2048)}
B = {"exchange": (1.75e-1, 3.06e-7), "gather": (3.20e-2, 1.68e-7), "scatter": (3.91e-2, 1.67e-7), "sum": (8.37e-2, 5.99e-7),
     "product": (9.24e-2, 4.42e-11), "shards": 4, "lengths": (256, 512, 1024)}
# Attention on B by length, from the authors' public code: ms, and ms per multiplication.
ATTENTION = {256: (9.061728879e-1, 1.6690605555e-10), 512: (7.674542565e-1, 1.7435315251e-10), 1024: (6.4634952121e-1, 2.5884462453e-10)}


def layers(bed):
    """Table 4 of the paper but for heads, which change nothing here. Tokens that are not dropped count as capacity 1."""
    return itertools.product((1, 2, 4), bed["lengths"], (1024, 2048, 4096), (2, 3, 4), (1.2, 2.4, 1.0), (2, 3))


def ask(heddle, bed, layer, *more):
    batch, length, hidden, wider, capacity, products = layer
    words = [heddle, "simulate", "experts", "--batch", str(batch), "--seq", str(length), "--hidden", str(hidden), "--width", str(wider * hidden),
             "--rows", str(2 * capacity), "--products", str(products), "--shards", str(bed["shards"]), "--json", *more]
    for name in ("exchange", "gather", "scatter", "sum", "product"):
        words += [f"--{name}", "{},{}".format(*bed[name])]
    if bed.get("attention"):
        fixed, each = ATTENTION[length]
        products = fixed + each * (4 * hidden + 2 * length) * batch * length * hidden / bed["shards"]
        shared = sum(bed[name][0] + bed[name][1] * batch * length * hidden for name in ("gather", "scatter"))
        words += ["--dense-ms", f"{products + shared},{2 * products + shared}"]
    return json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)


def means(heddle, bed):
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        reports = list(pool.map(lambda layer: ask(heddle, bed, layer), layers(bed)))
    speedups = [sum(report["methods"][i]["speedup"] for report in reports) / len(reports) for i in range(len(METHODS))]
    degrees = sum(report["methods"][3]["forward"]["degree"] != report["methods"][3]["backward"][0]["degree"] for report in reports)
    return speedups, degrees / len(reports)


def row(name, bed, published, heddle):
    speedups, apart = means(heddle, bed)
    print(f"| {name} | " + " | ".join(f"{value:.3f}" for value in speedups) + f" | {published:.2f} | {100 * (speedups[3] / published - 1):+.1f} % | {100 * apart:.0f} % |", flush=True)


def scaled(bed, factor, *names):
    return dict(bed, **{name: (bed[name][0], factor * bed[name][1]) for name in names})


def main(heddle):
    print("| lines | pipelined | dense | windows | lanes | published | difference | degrees differ |\n|---|---|---|---|---|---|---|---|")
    own = dict(B, attention=True)
    collectives = ("exchange", "gather", "scatter", "sum")
    row("A, as printed", A, 1.18, heddle)
    row("A, gather / 10", scaled(A, 0.1, "gather"), 1.18, heddle)
    row("A, gather / 10 and sum / 10", scaled(A, 0.1, "gather", "sum"), 1.18, heddle)
    row("A, lines per byte of float32", scaled(A, 4, *collectives), 1.18, heddle)
    row("B, as printed, attention of the code", own, 1.22, heddle)
    row("B, as printed, attention by the line of products", B, 1.22, heddle)
    row("B, lines per byte of float32", scaled(own, 4, *collectives), 1.22, heddle)
    ask(heddle, own, (4, 512, 2048, 4, 1.2, 3), "--svg", f"{HERE}/experts-schedules.svg")


if __name__ == "__main__":
    main(sys.argv[1])
