#!/usr/bin/env python3
"""Peak memory and rate of `heddle tokenize`, by format and size of the input: memory is to stay flat.

    python3 benchmarks/data/memory.py --heddle build/heddle --tokenizer tokenizer.json --work DIR [--megabytes 100,1000] [--formats jsonl,jsonl.gz,...]

Writes made-up text in each format, tokenizes it, and
compares the token files with that of the JSON lines. Parquet and Arrow need pyarrow. Needs about three times the largest size
on the disk; DIR is left empty.
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
import time
from pathlib import Path

FORMATS = ["jsonl", "json", "csv", "jsonl.gz", "jsonl.zst", "parquet", "arrow", "-"]


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


def write(path, form, megabytes):
    if form in ("jsonl", "-"):
        with open(path, "w") as file:
            for text in documents(megabytes):
                file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
    elif form == "json":
        with open(path, "w") as file:
            for index, text in enumerate(documents(megabytes)):
                file.write(("[\n" if index == 0 else ",\n") + json.dumps({"id": index, "text": text}))
            file.write("\n]\n")
    elif form == "csv":
        import csv
        with open(path, "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["id", "text"])
            writer.writerows(enumerate(documents(megabytes)))
    elif form in ("jsonl.gz", "jsonl.zst"):
        packer = ["gzip", "-1", "-c"] if form.endswith("gz") else ["zstd", "-1", "-q", "-c"]
        with open(path, "wb") as out, subprocess.Popen(packer, stdin=subprocess.PIPE, stdout=out, text=True) as process:
            for text in documents(megabytes):
                process.stdin.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
            process.stdin.close()
    else:
        import pyarrow as pa
        import pyarrow.parquet as pq
        schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
        make = pq.ParquetWriter(path, schema, compression="zstd") if form == "parquet" else pa.ipc.new_stream(str(path), schema)
        with make as writer:
            for number, batch in enumerate(batches(megabytes, 20000 if form == "parquet" else 1000)):
                writer.write_table(pa.table({"id": pa.array(range(len(batch)), pa.int64()), "text": batch}, schema=schema))


def tokenize(heddle, path, form, tokenizer, out, threads):
    """Peak resident bytes and seconds."""
    command = [heddle, "tokenize", "-" if form == "-" else path, "--tokenizer", tokenizer, "--out", out, "--threads", str(threads)]
    begin = time.monotonic()
    peak = 0
    with open(path if form == "-" else os.devnull, "rb") as given, tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen([str(word) for word in command], stdin=given, stdout=said, stderr=said)
        while process.poll() is None:  # what the system says at the end counts this script's own memory, too
            peak = max(peak, high_water(process.pid))
            time.sleep(0.05)
        said.seek(0)
        if process.returncode != 0:
            sys.exit(f"{path}: {said.read()}")
    return peak, time.monotonic() - begin


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
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    print("| format | text, MB | file, MB | peak, MiB | MB/s | tokens as from JSON lines |\n|---|---|---|---|---|---|")
    for megabytes in [int(size) for size in args.megabytes.split(",")]:
        expected = None
        for form in args.formats.split(","):
            path = args.work / ("in." + ("jsonl" if form == "-" else form))
            out = args.work / "out.tokens"
            write(path, form, megabytes)
            peak, seconds = tokenize(args.heddle, path, form, args.tokenizer, out, args.threads)
            with open(out, "rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest() if sys.version_info >= (3, 11) else hashlib.sha256(file.read()).hexdigest()
            expected = expected or digest
            print(f"| {form} | {megabytes} | {path.stat().st_size / 1e6:.0f} | {peak / 2**20:.0f} | {megabytes / seconds:.1f} | "
                  f"{'yes' if digest == expected else 'NO'} |", flush=True)
            path.unlink()
            for left in [out, Path(str(out) + ".json")]:
                left.unlink()
    shutil.rmtree(args.work)


if __name__ == "__main__":
    main()
