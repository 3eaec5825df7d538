"""What benchmark scripts share that call the program."""

import subprocess
import sys


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
