#!/usr/bin/env python3
"""The machine file of ranks that share one machine's cores and reach each other over a slow link only.

    build/heddle doctor --calibrate --ranks 4 --out machine.toml
    python3 benchmarks/wire/system.py machine.toml --ranks 4 --mbit 100 --delay-ms 50 --out slow.toml

A rank is what each of so many has of the machine when all compute; every rank is a server of its own.
"""

import argparse
import sys
import tomllib
from pathlib import Path

# What headers leave of a link's rate, and what connections over a long way do not fill.
REACHED = 0.93


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


def slow(machine, ranks, mbit, delay_ms):
    fits = [one for one in machine.get("shared", []) if one["ranks"] == ranks]
    if ranks > 1 and not fits:
        sys.exit(f"the machine file has no rates of {ranks} ranks: heddle doctor --calibrate --ranks {ranks}")
    rank = fits[0] if fits else machine
    link = {"gb_per_s": mbit / 8e3, "latency_us": 1e3 * delay_ms, "collective": REACHED, "message": REACHED, "rounds": "direct"}
    parts = [table("", {"name": f"{machine['name']}, {ranks} ranks, {mbit:g} Mbit/s, {delay_ms:g} ms"}),
             table("device", {**machine["device"], **rank["device"]}), table("software", {**machine["software"], **rank.get("software", {})})]
    parts += ["[[codec]]\n" + table("", codec) for codec in rank.get("codec", machine.get("codec", []))]
    parts += ["[[link]]\n" + table("", {"name": "none", "reach": 1, **link}), "[[link]]\n" + table("", {"name": "slow", **link})]
    return "\n\n".join(parts) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("machine", type=Path)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--mbit", type=float, required=True)
    parser.add_argument("--delay-ms", type=float, required=True, help="each way")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    machine = tomllib.loads(options.machine.read_text())
    options.out.write_text(slow(machine, options.ranks, options.mbit, options.delay_ms))


if __name__ == "__main__":
    main()
