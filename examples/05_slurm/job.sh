#!/bin/bash
#SBATCH --job-name=heddle
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=2
#SBATCH --signal=INT@120         # before time is up, save a checkpoint and end; sbatch again goes on
#SBATCH --open-mode=append

# Who knows the token can join the run: only you can read it.
export HEDDLE_TOKEN_FILE="$PWD/heddle-$SLURM_JOB_ID.token"
[ -e "$HEDDLE_TOKEN_FILE" ] ||
  (umask 077; head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' > "$HEDDLE_TOKEN_FILE")

srun --mpi=none --kill-on-bad-exit=1 --cpus-per-task=2 heddle train examples/05_slurm/run.toml
