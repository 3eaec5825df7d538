"""Holds the output that the documentation shows against what the program prints.

A comment before a code block says where its output comes from:

  <!-- output -->                             of the commands in the block, which begin with "$ "
  <!-- output of scripts/demo.sh -->          of the demo; with "on PROCESSOR": where it was recorded
  <!-- output of: heddle simulate ... -->     of this command; all of it
  <!-- part of the output of: heddle ... -->  lines that follow each other somewhere in it

A line "..." in a block stands for any lines. Commands run in a folder of their own, which has the
examples and, after the demo, its run; `heddle` is the program under test.

What is compared:
  - Words, counts, sizes and predicted numbers: exactly.
  - Times, rates, ETA and the memory of the process: not at all, beyond being there. Progress lines,
    which come only when something takes long: not at all.
  - Errors against a reference or between meshes ("5.3e-06"): not at all; "ok" says that they are
    small, and the limits are compared.
  - What training computes. On the processor on which the demo was recorded (name, family and model,
    vector width): exactly, generated text too. Elsewhere sums are rounded in another order, and what is
    one bit at the first step has grown into another run hundreds of steps later: the first step's
    loss to 0.002, its norm and the losses of a mesh to 1 %, losses and perplexities of later steps
    to 5 %, their norms to a factor of two, generated text not at all. (Blocks of other commands than
    the demo do not say where they were recorded, and are compared so everywhere.)
"""

import argparse
import difflib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

DEMO = "scripts/demo.sh"
ROOT = Path(__file__).resolve().parent.parent
FILES = ["README.md", *sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("examples/*/README.md")), "docs/guide.md"]
MARKER = re.compile(r"<!-- (?P<part>part of the )?output(?: of(?::)? (?P<source>.*?))?(?: on (?P<processor>[^>]*?))? -->")

# What differs from run to run, and stands for itself in the comparison.
TIMES = [
    (re.compile(r"\| [\d.]+ m?s \| [\d.]+[kM]? tok/s"), "| TIME | RATE"),
    (re.compile(r"\| mem [\d.]+ [KMG]iB"), "| mem MEMORY"),
    (re.compile(r"\| ETA \w+"), "| ETA TIME"),
    (re.compile(r"\bin [\dhm.]+s\b"), "in TIME"),
    (re.compile(r"\b\d+ tokens/s"), "RATE tokens/s"),
    (re.compile(r"(?<!at most )\b\d\.\d+e-\d\d\b"), "ERROR"),
    (re.compile(r" worst: \S+$"), " worst: TENSOR"),
]
PROGRESS = [
    re.compile(r"^[^|]* +\d+% \| .*/s( \| ETA .*)?$"),
    re.compile(r"^[^|$]+: .+ in [\dhm.]+s \(.+/s\)$"),
    re.compile(r"^(warning: )?step \d+: ranks? .* slow\b.*$"),  # on a busy machine
]
TRAINED = re.compile(r"(?P<name>held-out loss|loss|perplexity|norm) (?P<value>\d+\.\d+)")
GENERATED = re.compile(r"^(step \d+ sample: )?(?P<text>Today .*)$")


def processor():
    """What rounding depends on: "AMD EPYC 25/17, AVX-512". One name stands for many generations, for which
    libraries choose different kernels: family and model tell them apart."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return "unknown"
    name = re.search(r"^model name\s*: (.*)$", text, re.M)
    family = re.search(r"^cpu family\s*: (.*)$", text, re.M)
    model = re.search(r"^model\s*: (.*)$", text, re.M)
    flags = re.search(r"^flags\s*: (.*)$", text, re.M)
    words = flags.group(1).split() if flags else []
    width = "AVX-512" if "avx512f" in words else "AVX2" if "avx2" in words else "no AVX2"
    known = [found.group(1).strip() if found else "unknown" for found in (name, family, model)]
    return "{} {}/{}, {}".format(*known, width)


def tolerance(line, name, value):
    """How far a number that training computed may be off on another processor."""
    first = re.match(r"step 1/", line)
    if name == "loss" and first:
        return 0.002
    if not line.startswith(("step ", "held-out")) or first:  # a mesh, or the first step's norm
        return 0.01 * value
    return value if name == "norm" else 0.05 * value


def without_times(line):
    for pattern, name in TIMES:
        line = pattern.sub(name, line)
    return line.rstrip()


def same_line(shown, actual, exactly):
    shown, actual = without_times(shown), without_times(actual)
    if shown == actual:
        return True
    if exactly:
        return False
    if GENERATED.match(shown) and GENERATED.match(actual):
        return GENERATED.match(shown).group(1) == GENERATED.match(actual).group(1)
    # The number of tokens of a text that is not compared.
    if re.fullmatch(r"\d+ tokens, RATE tokens/s", shown) and re.fullmatch(r"\d+ tokens, RATE tokens/s", actual):
        return True
    if TRAINED.sub(r"\g<name> N", shown) != TRAINED.sub(r"\g<name> N", actual):
        return False
    for one, other in zip(TRAINED.finditer(shown), TRAINED.finditer(actual)):
        value = float(one["value"])
        if abs(value - float(other["value"])) > tolerance(shown, one["name"], value):
            return False
    return True


def segments(lines):
    """The runs of lines between those that say "..."."""
    runs = [[]]
    for line in lines:
        if line.strip() == "...":
            runs.append([])
        else:
            runs[-1].append(line)
    return runs


def place(segment, actual, begin, same):
    """Where in `actual` the segment is, or None."""
    for at in range(begin, len(actual) - len(segment) + 1):
        if all(same(a, b) for a, b in zip(segment, actual[at:])):
            return at
    return None


def shape(line):
    return re.sub(r"\d+", "0", re.sub(r"[\d.,]+[kM]?", "0", without_times(line)))


def same_output(shown, actual, is_part, exactly):
    """Whether the lines that are shown are what was printed."""
    same = lambda a, b: same_line(a, b, exactly)
    runs = segments(shown)
    if len(runs) == 1 and not is_part:
        return len(shown) == len(actual) and all(same(a, b) for a, b in zip(shown, actual))
    at = 0
    for number, run in enumerate(runs):
        found = place(run, actual, at, same)
        if found is None or (number == 0 and not is_part and found != 0):
            return False
        at = found + len(run)
    return is_part or not runs[-1] or at == len(actual)


def new_output(shown, actual, is_part):
    """What to show instead: the same parts of what was printed. None where they are not found."""
    runs = segments(shown)
    if len(runs) == 1 and not is_part:
        return actual
    lines, at = [], 0
    for number, run in enumerate(runs):
        found = place(run, actual, at, lambda a, b: shape(a) == shape(b))
        if found is None:
            return None
        if number:
            lines.append("...")
        lines += actual[found : found + len(run)]
        at = found + len(run)
    return lines


class Program:
    """Runs commands in a folder of its own and remembers what they printed."""

    def __init__(self, program, root, folder):
        self.root, self.folder, self.outputs = root, folder, {}
        for name in ["examples", "configs", "tests/reference/models/llama"]:
            shutil.copytree(root / name, folder / name)
        (folder / "scripts").mkdir()
        shutil.copy(root / "scripts/demo.sh", folder / "scripts/demo.sh")
        (folder / "build").mkdir()
        (folder / "build/heddle").symlink_to(program.resolve())

    def lines(self, command):
        if command not in self.outputs:
            print(f"running {command}", file=sys.stderr, flush=True)
            path = f"{self.folder / 'build'}:{os.environ['PATH']}"
            run = subprocess.run(
                ["stdbuf", "-oL", "bash", "-c", command], cwd=self.folder, text=True, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env={**os.environ, "PATH": path, "NO_COLOR": "1"})
            if run.returncode:
                sys.exit(f"{command} ended with status {run.returncode}:\n{run.stdout}")
            lines = [line.rstrip() for line in run.stdout.strip("\n").split("\n")]
            self.outputs[command] = [line for line in lines if not any(p.match(line) for p in PROGRESS)]
        return self.outputs[command]

    def demo(self):
        return self.lines("./scripts/demo.sh build/heddle")


class Block:
    """A code block after a marker: lines[begin:end] of a file."""

    def __init__(self, marker, lines, begin, end):
        self.part = bool(marker["part"])
        self.source, self.processor = marker["source"], marker["processor"]
        self.lines, self.begin, self.end = lines[begin:end], begin, end

    def needs_demo(self):
        return self.source == DEMO or "runs/demo" in "".join(self.lines) or "examples/" in (self.source or "") + "".join(self.lines)

    def pieces(self, program):
        """(shown lines, printed lines, whether they are a part) of each command."""
        if self.source == DEMO:
            return [(self.lines, program.demo(), False)]
        if self.source:
            return [(self.lines, program.lines(self.source), self.part)]
        pieces = []
        for line in self.lines:
            if line.startswith("$ "):
                pieces.append(([], program.lines(line[2:]), self.part))
            else:
                pieces[-1][0].append(line)
        return pieces

    def rewritten(self, program):
        """The lines as they should be, or None where the shown parts are no longer printed."""
        commands = [line for line in self.lines if line.startswith("$ ")] if not self.source else []
        lines = []
        for number, (shown, printed, part) in enumerate(self.pieces(program)):
            new = new_output(shown, printed, part)
            if new is None:
                return None
            lines += commands[number : number + 1] + new
        return lines


def blocks_of(text):
    """The marked blocks of a Markdown text, and its lines."""
    lines, blocks, at = text.split("\n"), [], 0
    while at < len(lines):
        marker = MARKER.fullmatch(lines[at].strip())
        at += 1
        if not marker:
            continue
        while not lines[at].startswith("```"):
            if lines[at].strip():
                sys.exit(f"no code block follows {marker.group(0)}")
            at += 1
        end = lines.index("```", at + 1)
        blocks.append(Block(marker, lines, at + 1, end))
        at = end
    return blocks, lines


def photograph(program, image):
    """The report of the demo as a picture."""
    program.demo()
    page = program.folder / "runs/demo/report.html"
    subprocess.run(
        ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--screenshot={image}",
         "--window-size=1200,1500", f"--user-data-dir={program.folder}/browser", page.as_uri()],
        check=True, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    print(f"{image}: made anew")


def main():
    parser = argparse.ArgumentParser(description="Holds documented output against the program.")
    parser.add_argument("--check", action="store_true", help="compare only (the default)")
    parser.add_argument("--write", action="store_true", help="write anew the blocks that differ")
    parser.add_argument("--images", action="store_true", help="also make docs/images/report.png anew")
    parser.add_argument("program", nargs="?", default="build/heddle", type=Path)
    options = parser.parse_args()
    root = ROOT
    if not options.program.exists():
        sys.exit(f"{options.program} is not there; make builds it")
    different = 0
    with tempfile.TemporaryDirectory(prefix="heddle-readme-") as folder:
        program = Program(options.program, root, Path(folder))
        for name in FILES:
            blocks, lines = blocks_of((root / name).read_text())
            for block in reversed(blocks):
                if block.needs_demo():
                    program.demo()
                exactly = block.processor == processor()
                pieces = block.pieces(program)
                if all(same_output(*piece, exactly) for piece in pieces):
                    continue
                different += 1
                new = block.rewritten(program)
                if new is None:
                    print(f"{name}, line {block.begin}: lines that are shown are no longer printed; edit by hand")
                    new = [line for _, printed, _ in pieces for line in printed]
                elif options.write:
                    lines[block.begin : block.end] = new
                    if block.source == DEMO:
                        marker = next(i for i in range(block.begin, -1, -1) if MARKER.fullmatch(lines[i].strip()))
                        lines[marker] = f"<!-- output of {DEMO} on {processor()} -->"
                print("\n".join(difflib.unified_diff(
                    block.lines, new, f"{name} shows", "the program prints", lineterm="", n=1)))
            if options.write:
                (root / name).write_text("\n".join(lines))
        if options.images:
            photograph(program, root / "docs/images/report.png")
    if different and not options.write:
        print(f"\n{different} blocks differ; scripts/readme_output.sh --write puts in what is printed")
    return 1 if different and not options.write else 0


if __name__ == "__main__":
    sys.exit(main())
