#!/usr/bin/env python3
"""SkipPipe's published cluster (arXiv 2502.19913, 20 nodes in 12 regions): our search beside the published routes.

    python3 benchmarks/routes/cluster.py --heddle build/heddle

The links are the published ones; a step has 30 micro-batches, of which a node has at most three in flight. The published routes take 33.31 s, the full
pipelines 79.94 s for 27 micro-batches; played for 30 of them (tests/simulator/play_routes_test.cpp), 33.35 and 102.1 s. The exit status is 1 where the
search takes longer than five minutes or is worse than the published routes."""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
REGIONS = "Bel Can Ger Iow Jap LA NL Ore Sin Tai Lon Aus".split()
NODES = 20  # the regions in turn
LINKS = ROOT / "tests" / "simulator" / "published_links.txt"  # milliseconds / MiB/s, both ways
PUBLISHED_STAGES = "0,3,4,10,11 15,8,14 1,9,6 16,12,13 5,18,7 17,2,19"
PUBLISHED_SECONDS, PLAYED_SECONDS, FULL_SECONDS = 33.31, 33.357, 102.1
MOST_SECONDS = 300


def links():
    pairs = {}
    for line in LINKS.read_text().splitlines():
        one, others = line.split(": ")
        words = others.split()
        for other, rates in zip(words[::2], words[1::2]):
            latency, rate = map(float, rates.split("/"))
            pairs[one, other] = pairs[other, one] = (latency / 1e3, rate * 2**20)
    table = []
    for a in range(NODES):
        for b in range(a):
            one, other = REGIONS[a % len(REGIONS)], REGIONS[b % len(REGIONS)]
            latency, rate = (0.001, 2048 * 2**20) if one == other else pairs[one, other]
            table.append({"from": a, "to": b, "latency_seconds": latency, "bytes_per_second": rate})
    return {"links": table}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--heddle", default=str(ROOT / "build" / "heddle"), help="the program")
    parser.add_argument("--seconds", type=float, default=120, help="of each search, at most")
    parser.add_argument("--starts", type=int, default=8, help="of each search")
    options = parser.parse_args()
    holds = True
    print("| stages | step | published | all stages, same limit | gain | plans | search |\n|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "links.json"
        file.write_text(json.dumps(links()))
        for name, where, bar in (("as published", ["--nodes", PUBLISHED_STAGES], PLAYED_SECONDS),
                                 ("searched too", ["--stages", "5,3,3,3,3,3"], PUBLISHED_SECONDS)):
            words = [options.heddle, "plan", "routes", file, *where, "--skip", "0.33", "--memory", "3", "--microbatches", "6", "--message-bytes", "33554648",
                     "--forward", "0.44", "--backward", "1.5", "--loss", "0.25", "--gap", "0.13", "--overhead", "0.35", "--seconds", options.seconds,
                     "--starts", options.starts, "--json"]
            found = json.loads(subprocess.run([str(word) for word in words], capture_output=True, text=True, check=True).stdout)
            holds = holds and found["seconds"] <= bar and found["search_seconds"] <= MOST_SECONDS
            print(f"| {name} | {found['seconds']:.2f} s | {PUBLISHED_SECONDS} s ({PLAYED_SECONDS:.2f} played) | {found['full']['seconds']:.2f} s "
                  f"| {100 * found['gain']:.0f} % | {found['plans_tried']} | {found['search_seconds']:.0f} s |", flush=True)
    print(f"\nat most 3 micro-batches in flight on a node; published full pipelines take {FULL_SECONDS} s for as many micro-batches under that limit")
    print(f"no worse than published, within {MOST_SECONDS} s: {'holds' if holds else 'does not hold'}")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
