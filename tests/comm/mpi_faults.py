#!/usr/bin/env python3
"""Freezes, stops, kills, desynchronises or fails one rank under mpirun and checks the verdict.

    mpi_faults.py PROGRAM [--trials N] [--fault NAME]
"""
import argparse
import os
import random
import re
import subprocess
import sys
import tempfile
import time

RANKS = 4
LIMIT = 1.0
CALLS = 59  # that each rank makes
EXPECTED = {
    "freeze": r"rank {rank} has not .*its last call was .*, which ended",
    "stop": r"rank {rank} has given no sign of life for .* s",
    "kill": r"the process of rank {rank} is gone",
    "skip": r"rank {rank} (is out of step: it is in .*its last call was|has ended and has not) ",
    "throw": r"rank {rank} stopped: corpus.bin is torn",
}


def trial(program, fault, seed):
    rng = random.Random(f"{fault} {seed}")
    rank, call = rng.randrange(RANKS), rng.randrange(3, CALLS)
    with tempfile.TemporaryDirectory() as folder:
        command = ["mpirun", "--oversubscribe", "-n", str(RANKS), program, "train", fault, str(rank), str(call),
                   str(LIMIT), os.path.join(folder, "flight")]
        began = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        seconds = time.monotonic() - began
        flights = len(os.listdir(os.path.join(folder, "flight"))) if os.path.isdir(os.path.join(folder, "flight")) else 0
    output = done.stdout + done.stderr
    wanted = EXPECTED[fault].format(rank=rank)
    problems = []
    if not re.search(wanted, output):
        problems.append(f"no verdict like /{wanted}/")
    # mpirun itself ends the others when a process is killed, and reports the signal.
    if fault in ("freeze", "skip", "stop") and done.returncode != 4:
        problems.append(f"status {done.returncode}")
    if fault == "throw" and done.returncode not in (4, 5):
        problems.append(f"status {done.returncode}")
    if fault in ("freeze", "skip") and flights == 0:
        problems.append("no flight records")
    if problems:
        print(f"{fault} of rank {rank} before call {call}: {'; '.join(problems)}\n{output}")
    return not problems, seconds


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--trials", type=int, default=2)
    parser.add_argument("--fault", choices=EXPECTED, action="append")
    arguments = parser.parse_args()
    failed = 0
    for fault in arguments.fault or EXPECTED:
        results = [trial(arguments.program, fault, seed) for seed in range(arguments.trials)]
        failed += sum(not good for good, _ in results)
        times = sorted(seconds for _, seconds in results)
        print(f"{fault}: {sum(good for good, _ in results)} of {len(results)} named the rank; "
              f"whole runs took {times[0]:.1f} to {times[-1]:.1f} s with a limit of {LIMIT} s")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
