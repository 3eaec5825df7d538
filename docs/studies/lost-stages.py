#!/usr/bin/env python3
"""Draws how long training takes when stages are lost, beside redundant computation, ours and as published.

    python3 docs/studies/lost-stages.py benchmarks/results/lost-stages-2026-11-17.json lost-stages.svg
    python3 docs/studies/lost-stages.py benchmarks/results/lost-stages-12-2026-11-18.json lost-stages-12.svg

The first file is results.json of benchmarks/recover/strategies.py."""

import json
import os
import statistics
import sys

from step_figures import bars

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "benchmarks", "recover"))
from strategies import NAMES, ORDER, PUBLISHED_HOURS, SECONDS  # noqa: E402


def main():
    with open(sys.argv[1]) as file:
        results = json.load(file)
    rates = sorted(int(rate) for rate in next(iter(results.values()))["checkpoint"])

    def hours(strategy, rate):
        return statistics.mean(found[strategy][str(rate)]["iterations"] for found in results.values()) * SECONDS[strategy][rate]

    series = []
    for colour, strategy in enumerate(ORDER):
        ours = [100 * hours(strategy, rate) / hours("redundant", rate) for rate in rates]
        published = [100 * PUBLISHED_HOURS[strategy][rate] / PUBLISHED_HOURS["redundant"][rate] for rate in rates]
        series.append((NAMES[strategy], (2, 0, 5, 3)[colour], ours, published))
    high = max(max(value for value in ours + published) for _, _, ours, published in series)
    bars(f"{HERE}/{sys.argv[2]}", "Time to the same loss in % of that with redundant computation",
         [f"{rate} % of stages lost an hour" for rate in rates], series, 50 * (int(high * 1.05 / 50) + 1), marked="published")


main()
