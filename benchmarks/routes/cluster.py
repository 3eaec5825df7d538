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
# Milliseconds / MiB/s, both ways.
LINKS = """
Aus: Bel 129/10.1 Can 98/13.5 Ger 125.5/10.7 Iow 84/11.5 Jap 58/14.1 LA 69/15.0 Lon 132/9.6 NL 128/9.8 Ore 68/15.0 Sin 48/30.5 Tai 67/21.5
Bel: Can 41/20.4 Ger 4/248 Iow 49/29.0 Jap 112/12.0 LA 70/19.9 Lon 3.5/248 NL 3/248 Ore 66/21.4 Sin 83/16.5 Tai 105/12.8
Can: Ger 44/32.6 Iow 14/77.5 Jap 74/18.5 LA 35/31.2 Lon 38.5/37.2 NL 42/25.6 Ore 30.5/48.2 Sin 107/12.2 Tai 89/15.1
Ger: Iow 53.5/27.2 Jap 112/11.3 LA 73/18.7 Lon 6.6/193 NL 3.5/248 Ore 68/15.3 Sin 80/12.8 Tai 102/12.9
Iow: Jap 72.5/14.3 LA 23.4/62.9 Lon 48.1/22.4 NL 51/28.1 Ore 19.3/92.5 Sin 101.5/12.9 Tai 88/13.1
Jap: LA 50/28.4 Lon 107/9.1 NL 108.5/11.7 Ore 46.2/31.2 Sin 35.6/39.9 Tai 19.2/78.6
LA: Lon 68/15.3 NL 71.5/14.6 Ore 12.4/121 Sin 79.5/17.2 Tai 64/16.6
Lon: NL 4.8/24.2 Ore 64/21.8 Sin 85/16.1 Tai 109.5/9.2
NL: Ore 67/20.9 Sin 81.5/16.8 Tai 105.5/12.2
Ore: Sin 78.5/17.2 Tai 59.5/23.9
Sin: Tai 23.2/63.4"""
PUBLISHED_STAGES = "0,3,4,10,11 15,8,14 1,9,6 16,12,13 5,18,7 17,2,19"
PUBLISHED_SECONDS, PLAYED_SECONDS, FULL_SECONDS = 33.31, 33.357, 102.1
MOST_SECONDS = 300


def links():
    pairs = {}
    for line in LINKS.strip().splitlines():
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
