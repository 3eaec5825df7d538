#!/usr/bin/env python3
"""Peak memory and rate of `heddle tokenize`, by format and size of the input: memory is to stay flat.

    python3 benchmarks/data/memory.py --heddle build/heddle --tokenizer tokenizer.json --work DIR [--megabytes 100,1000] [--formats jsonl,jsonl.gz,...] [--piped]

Writes made-up text in each format, tokenizes it, and compares the token files with that of the first format. Parquet and
Arrow need pyarrow. Needs about three times the largest size on the disk, with --piped twice what the tokens take; DIR is
removed. Formats beside those of the list: txt (documents that a separator ends) and one.txt (one document).
"""

import argparse
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

FORMATS = ["jsonl", "json", "csv", "jsonl.gz", "jsonl.zst", "parquet", "arrow", "jsonl|"]  # "|": by standard input
COLUMNS = ["parquet", "arrow"]
SEPARATOR = "<|endoftext|>"


def documents(megabytes):
    """Texts of together so many megabytes, the same every time."""
    rng = random.Random(7)
    words = ["".join(rng.choice("abcdefghijklmnopqrstuvwxyzéß") for _ in range(rng.randint(2, 9))) for _ in range(5000)]
    lines = [" ".join(rng.choices(words, k=rng.randint(30, 400))) + '. "So", he said.\n' for _ in range(2000)]
    left, index = megabytes * 1_000_000, 0
    while left > 0:
        text = lines[index % len(lines)] + str(index)
        index += 1
        left -= len(text.encode())
        yield text


def batches(megabytes, size=1000):
    batch = []
    for text in documents(megabytes):
        batch.append(text)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def lines_of(form, megabytes):
    """The file of a format that is text, piece by piece."""
    if form == "json":
        for index, text in enumerate(documents(megabytes)):
            yield ("[\n" if index == 0 else ",\n") + json.dumps({"id": index, "text": text})
        yield "\n]\n"
    elif form == "csv":
        yield "id,text\r\n"
        for index, text in enumerate(documents(megabytes)):
            yield f'{index},"' + text.replace('"', '""') + '"\r\n'
    elif form == "txt":
        for text in documents(megabytes):
            yield text + SEPARATOR
    elif form == "one.txt":
        for text in documents(megabytes):
            yield text + "\n"
    else:
        for text in documents(megabytes):
            yield json.dumps({"text": text}, ensure_ascii=False) + "\n"


def put(form, megabytes, out):
    """Writes a file of that format to `out`, which is open, and closes it."""
    packers = {".gz": ["gzip", "-1", "-c"], ".zst": ["zstd", "-1", "-q", "-c"]}
    packer = packers.get(Path(form).suffix)
    with out:
        if packer is None:
            for piece in lines_of(form, megabytes):
                out.write(piece.encode())
            return
        with subprocess.Popen(packer, stdin=subprocess.PIPE, stdout=out) as process:
            for piece in lines_of(form, megabytes):
                process.stdin.write(piece.encode())
            process.stdin.close()


def write_columns(path, form, megabytes):
    import pyarrow as pa
    import pyarrow.parquet as pq
    schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
    make = pq.ParquetWriter(path, schema, compression="zstd") if form == "parquet" else pa.ipc.new_stream(str(path), schema)
    with make as writer:
        for batch in batches(megabytes, 20000 if form == "parquet" else 1000):
            writer.write_table(pa.table({"id": pa.array(range(len(batch)), pa.int64()), "text": batch}, schema=schema))


def tokenize(args, path, form, megabytes, out):
    """Peak resident bytes and seconds."""
    command = [args.heddle, "tokenize", "-" if is_piped(args, form) else path, "--tokenizer", args.tokenizer, "--out", out,
               "--threads", args.threads]
    if form == "csv":
        command += ["--as", "csv"]  # standard input has no name that says it
    if form == "txt":
        command += ["--delimiter", SEPARATOR]
    begin = time.monotonic()
    peak = 0
    with tempfile.TemporaryFile("w+") as said:
        given = subprocess.PIPE if is_piped(args, form) else subprocess.DEVNULL
        process = subprocess.Popen([str(word) for word in command], stdin=given, stdout=said, stderr=said)
        maker = threading.Thread(target=put, args=(form.removesuffix("|"), megabytes, process.stdin)) if process.stdin else None
        if maker:
            maker.start()
        while process.poll() is None:  # what the system says at the end counts this script's own memory, too
            peak = max(peak, high_water(process.pid))
            time.sleep(0.05)
        if maker:
            maker.join()
        said.seek(0)
        if process.returncode != 0:
            sys.exit(f"{path}: {said.read()}")
    return peak, time.monotonic() - begin


def is_piped(args, form):
    return form.endswith("|") or (args.piped and form not in COLUMNS)


def high_water(pid):
    """The most that a process had in memory so far, in bytes; 0 when it has ended."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--heddle", required=True, type=Path)
    parser.add_argument("--work", required=True, type=Path)
    parser.add_argument("--tokenizer", required=True, type=Path)
    parser.add_argument("--megabytes", default="100,1000")
    parser.add_argument("--formats", default=",".join(FORMATS))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--piped", action="store_true", help="give what can be by standard input, and keep it off the disk")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    print("| format | text, MB | file, MB | peak, MiB | MB/s | tokens as from the first |\n|---|---|---|---|---|---|")
    for megabytes in [int(size) for size in args.megabytes.split(",")]:
        expected = None
        for form in args.formats.split(","):
            path = args.work / ("in." + form.removesuffix("|"))
            out = args.work / "out.tokens"
            if form in COLUMNS:
                write_columns(path, form, megabytes)
            elif not is_piped(args, form):
                put(form, megabytes, open(path, "wb"))
            peak, seconds = tokenize(args, path, form, megabytes, out)
            with open(out, "rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest() if sys.version_info >= (3, 11) else hashlib.sha256(file.read()).hexdigest()
            expected = expected or digest
            size = f"{path.stat().st_size / 1e6:.0f}" if path.exists() else "piped"
            print(f"| {form} | {megabytes} | {size} | {peak / 2**20:.0f} | {megabytes / seconds:.1f} | "
                  f"{'yes' if digest == expected else 'NO'} |", flush=True)
            path.unlink(missing_ok=True)
            for left in [out, Path(str(out) + ".json")]:
                left.unlink()
    shutil.rmtree(args.work)


if __name__ == "__main__":
    main()
