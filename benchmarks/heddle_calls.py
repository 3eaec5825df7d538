"""What benchmark scripts share that call the program."""

import argparse
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).resolve().parent.parent / "build" / "heddle"


def parser_of(description, out):
    """Options of every script that trains on a text. `out`: what the folder is of."""
    parser = argparse.ArgumentParser(description=description.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--heddle", default=str(PROGRAM), help="the program")
    parser.add_argument("--out", type=Path, required=True, help=f"folder of the {out}")
    parser.add_argument("--text", type=Path, required=True, help="a text file")
    return parser


def run(command):
    """What it prints; ends the script where it fails."""
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} ended with status {result.returncode}:\n{result.stderr}")
    return result.stdout


def make_tokens(heddle, text, vocabulary, folder):
    """Writes tokenizer.json and text.tokens, once."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "text.tokens").exists():
        run([heddle, "tokenizer", "train", text, "--vocab", vocabulary, "--special", "<|endoftext|>", "--out", folder / "tokenizer.json"])
        run([heddle, "tokenize", text, "--tokenizer", folder / "tokenizer.json", "--out", folder / "text.tokens"])
