#!/usr/bin/env python3
"""Message sizes: what a device sends in a step, by axis and size. Prints the table of messages.md and draws messages.svg.
python3 docs/studies/messages.py build/heddle"""

import json
import math
import os
import subprocess
import sys

from step_figures import frame, save

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
CASES = {"ZeRO 1": ["--zero", "1"], "ZeRO 3": ["--zero", "3"], "ZeRO 1, tp not along the sequence": ["--zero", "1", "--sequence", "false"]}


def size(count):
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if count < 1024:
            return f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.3g} PiB"


def messages(heddle, options):
    """Of a device of the fourth pipeline rank: (axis, operation, bucket) -> (calls, payload)."""
    said = subprocess.run([heddle, "simulate", "step", "--model", "gpt3-175b", "--system", f"{ROOT}/configs/systems/a100-dgx-hdr.toml",
                           "--gpus", "512", "--tp", "8", "--pp", "8", "--schedule", "interleaved", "--chunks", "3", "--microbatch", "1",
                           "--batch-tokens", "3145728", *options, "--json"], check=True, capture_output=True, text=True)
    rank = json.loads(said.stdout)["messages"][3]
    return {(m["group"], m["operation"], m["at_least_bytes"]): (m["calls"], m["payload_bytes"]) for m in rank}


def draw(path, cases):
    left, step, row, top = 60, 27, 46, 56
    axes, last = ("tp", "dp", "pp"), 30
    width, height = left + step * (last + 1) + 20, top + len(cases) * (row * len(axes) + 34) + 20
    out = frame("Payload of a step by axis and size of message, with the number of messages", width, height)
    for c, (name, found) in enumerate(cases.items()):
        y0 = top + c * (row * len(axes) + 34)
        out.append(f'<text class="k" x="8" y="{y0 - 6}">{name}</text>')
        for a, axis in enumerate(axes):
            y = y0 + row * a + row / 2
            out.append(f'<line class="h" x1="{left}" x2="{width - 12}" y1="{y}" y2="{y}"/><text x="28" y="{y + 4}">{axis}</text>')
            for bucket in range(last + 1):
                calls, payload = (sum(v[k] for (group, _, at), v in found.items() if group == axis and at == 1 << bucket) for k in (0, 1))
                if not calls:
                    continue
                x, radius = left + step * (bucket + .5), 2 + 11 * max(0, math.log2(payload) - 10) / 34
                out.append(f'<circle fill="var(--c{(0, 2, 4)[a]})" cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}"><title>{size(payload)}</title></circle>'
                           f'<text class="t" x="{x:.1f}" y="{y - radius - 2 if bucket % 2 else y + radius + 10:.1f}" font-size="10">{calls:,}</text>')
    for bucket in range(0, last + 1, 5):
        out.append(f'<text class="t" x="{left + step * bucket}" y="{height - 6}">{size(1 << bucket)}</text>')
    save(path, out)


def main():
    heddle = sys.argv[1] if len(sys.argv) > 1 else "build/heddle"
    cases = {name: messages(heddle, options) for name, options in CASES.items()}
    print("| plan | axis | operation | messages | of | payload |\n|---|---|---|---|---|---|")
    for name, found in cases.items():
        for (group, operation, _), (calls, payload) in found.items():
            if operation != "recv" and payload > 1 << 20:
                print(f"| {name} | {group} | {operation} | {calls:,} | {size(payload / calls)} | {size(payload)} |")
    draw(f"{HERE}/messages.svg", cases)


main()
