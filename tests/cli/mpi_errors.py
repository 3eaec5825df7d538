#!/usr/bin/env python3
"""Ranks under mpirun say once what they fail of, and end with its status.

    mpi_errors.py HEDDLE
"""
import os
import subprocess
import sys
import tempfile

RANKS = 4


def run(program, folder, arguments):
    command = ["mpirun", "--oversubscribe", "-n", str(RANKS), program, *arguments]
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=folder, env=environment)
    return done.returncode, done.stdout + done.stderr


def main():
    program = os.path.abspath(sys.argv[1])
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "bad.toml"), "w") as file:
            file.write('[model]\npreset = "llama-15m"\n[data]\ntrain = "no.tokens"\n[train]\nstepz = 2\n')
        with open(os.path.join(folder, "nodata.toml"), "w") as file:
            file.write('[model]\npreset = "llama-15m"\n[data]\ntrain = "no.tokens"\nseq_len = 16\n[train]\nsteps = 2\n')
        for arguments, status, text in [
            (["train", "bad.toml"], 2, "train.stepz"),
            (["train", "missing.toml"], None, "missing.toml"),
            (["train", "nodata.toml"], None, "no.tokens"),
            (["train", "--nonsense"], 2, "--nonsense"),
        ]:
            code, output = run(program, folder, arguments)
            errors = [line for line in output.splitlines() if "error: " in line]
            problems = []
            if len(errors) != 1 or text not in output:
                problems.append(f"{len(errors)} errors, wanted one with {text}")
            if code == 0 or (status is not None and code != status):
                problems.append(f"status {code}")
            print(f"{' '.join(arguments)}: {'; '.join(problems) or 'once'}")
            if problems:
                print(output)
                failed = True
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
