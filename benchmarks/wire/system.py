#!/usr/bin/env python3
"""The machine file of ranks that reach each other over a slow link only.

    build/heddle doctor --calibrate --ranks 4 --out machine.toml
    build/tests/links/shaped_run 4 ... -- build/heddle bench link --json > links.json   (of rank 0)
    python3 benchmarks/wire/system.py machine.toml --ranks 4 --part 0.35 --links links.json --out slow.toml

The benchmarks of this folder do the second and third step by themselves (--machine).

Every rank is a server of its own. What a rank computes with: as calibrated for so many ranks on the machine at a time; or,
where it has a share of a core (cores.py), that --part of what a rank has that has a core to itself. The part is less than
the share, since a rank that is stopped and started finds cold caches; the benchmarks measure it. What the link carries: as
measured by `bench link` (a rank to the next; and all to all, for exchanges of more than two).
"""

import argparse
import json
import os
import statistics
import sys
import tomllib
from pathlib import Path

RATES = {"memory_gb_per_s", "f32", "encode_gb_per_s", "encode_with_residual_gb_per_s", "decode_gb_per_s"}
TIMES = {"kernel_us", "host_us", "host_collective_us", "step_ms"}


def text_of(value):
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return '"' + value + '"'
    if isinstance(value, list):
        return "[" + ", ".join(text_of(one) for one in value) + "]"
    return repr(value)


def table(name, values):
    """Tables inside it follow it."""
    lines = [f"[{name}]"] if name else []
    lines += [f"{key} = {text_of(value)}" for key, value in values.items() if not isinstance(value, dict)]
    for key, value in values.items():
        if isinstance(value, dict):
            lines += ["", table(f"{name}.{key}" if name else key, value)]
    return "\n".join(lines)


def part_of(part, values):
    """Of a table of rates and times: what a part of the core gives."""
    def scaled(key, value):
        if isinstance(value, dict):
            return part_of(part, value)
        return value * part if key in RATES else value / part if key in TIMES else value
    return {key: scaled(key, value) for key, value in values.items()}


def rank_of(machine, ranks, part):
    """Device, software and codecs of a rank."""
    at_work = os.cpu_count() if part else ranks
    fits = [one for one in machine.get("shared", []) if one["ranks"] == at_work]
    if at_work > 1 and not fits:
        sys.exit(f"the machine file has no rates of {at_work} ranks: heddle doctor --calibrate --ranks {at_work}")
    rank = fits[0] if fits else machine
    found = ({**machine["device"], **rank["device"]}, {**machine["software"], **rank.get("software", {})},
             rank.get("codec", machine.get("codec", [])))
    if not part:
        return found
    return part_of(part, found[0]), part_of(part, found[1]), [part_of(part, one) for one in found[2]]


def link_of(measured):
    """All are equal here, so of their rates the median counts: one connection in a bad moment says nothing of the others."""
    rate = statistics.median(one["bytes_per_second"] for one in measured["links"])
    exchange = measured.get("exchange", {"bytes_per_second": rate})["bytes_per_second"]
    latency = min(one["latency_seconds"] for one in measured["links"])
    return {"gb_per_s": rate / 1e9, "latency_us": 1e6 * latency, "collective": min(1.0, exchange / rate),
            "message": 1.0, "rounds": "direct"}


def machine_text(machine, ranks, part, measured):
    """`measured`: what `bench link --json` printed."""
    link = link_of(measured)
    device, software, codecs = rank_of(machine, ranks, part)
    parts = [table("", {"name": f"{machine['name']}, {ranks} ranks apart"}), table("device", device), table("software", software)]
    parts += ["[[codec]]\n" + table("", codec) for codec in codecs]
    parts += ["[[link]]\n" + table("", {"name": "none", "reach": 1, **link}), "[[link]]\n" + table("", {"name": "slow", **link})]
    return "\n\n".join(parts) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("machine", type=Path)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--part", type=float, help="of what a core does, that each rank has")
    parser.add_argument("--links", type=Path, required=True, help="what heddle bench link --json printed")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    measured = json.loads(options.links.read_text())
    options.out.write_text(machine_text(tomllib.loads(options.machine.read_text()), options.ranks, options.part, measured))


if __name__ == "__main__":
    main()
