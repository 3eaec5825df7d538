"""Runs an example as its README says, with fewer steps, in a folder of its own.

    examples_test.py HEDDLE EXAMPLE

Exit status 0 when it holds, 77 where this machine cannot run it.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class Example:
    """A copy of the top folder as far as examples need it, with the text that they train on."""

    def __init__(self, program, folder):
        self.folder = folder
        shutil.copytree(ROOT / "examples", folder / "examples")
        (folder / "bin").mkdir()
        (folder / "bin/heddle").symlink_to(program.resolve())
        self.environment = {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "NO_COLOR": "1",
                            "OMP_NUM_THREADS": "1"}
        self.run("heddle demo-text --bytes 200000 --out runs/demo-text/text.jsonl")
        self.run("heddle tokenizer train runs/demo-text/text.jsonl --vocab 512 --special '<|endoftext|>' "
                 "--out runs/demo-text/tokenizer.json")

    def run(self, command, **variables):
        done = subprocess.run(["bash", "-c", command], cwd=self.folder, env={**self.environment, **variables}, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, timeout=300)
        assert done.returncode == 0, f"{command}: status {done.returncode}\n{done.stdout}"
        return done.stdout

    def expect_checkpoint(self, run, step):
        checkpoint = self.folder / f"runs/{run}/checkpoints/step-{step:06}"
        assert (checkpoint / "COMMIT").exists(), f"{checkpoint} is not there"


def mesh(example):
    example.run("heddle train examples/02_mesh/run.toml --ranks 8 --set train.steps=2 --set optim.warmup_steps=1")
    example.expect_checkpoint("mesh", 2)
    told = example.run("heddle train examples/02_mesh/run.toml --ranks 3 --set parallel.tp=1 --set parallel.pp=3 "
                       "--set train.steps=3 --set optim.warmup_steps=1")
    assert "step-000002 at step 2" in told, told
    example.expect_checkpoint("mesh", 3)


def eight_gpus(example):
    told = example.run("heddle train examples/03_eight_gpus/run.toml --ranks 8 --dry-run")
    assert "dp=8 tp=1 pp=1, ZeRO 1" in told, told


def two_machines(example):
    settings = ["train.steps=12", "optim.warmup_steps=2", "train.microbatch=2", "train.tokens_per_step=1024"]
    file = example.folder / "examples/04_two_machines/run.toml"
    text = file.read_text()
    for setting in settings:
        key, value = setting.split(".")[1].split("=")
        lines = [f"{key} = {value}" if line.startswith(f"{key} = ") else line for line in text.split("\n")]
        text = "\n".join(lines)
    file.write_text(text)
    example.run("umask 077; head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \\n' > runs/token")
    told = example.run("examples/04_two_machines/both.sh", MASTER_PORT=str(20000 + os.getpid() % 9000))
    assert "step 11: sites met" in told, told
    example.expect_checkpoint("two-machines", 12)


SRUN = """#!/usr/bin/env bash
# srun on one machine that plays two nodes with two tasks each.
while [ "${1#-}" != "$1" ]; do shift; done
export SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=4 SLURM_STEP_TASKS_PER_NODE='2(x2)' SLURM_STEP_NODELIST=localhost
tasks=()
for rank in 0 1 2 3; do
  SLURM_PROCID=$rank SLURM_NODEID=$((rank / 2)) SLURM_LOCALID=$((rank % 2)) "$@" & tasks+=($!)
done
worst=0
for task in "${tasks[@]}"; do wait "$task" || worst=$?; done
exit $worst
"""


def slurm(example):
    srun = example.folder / "bin/srun"
    srun.write_text(SRUN)
    srun.chmod(0o755)
    job = "examples/05_slurm/job.sh"
    printed = example.run("heddle launch --slurm --plain --ranks 4 --nodes 2 --cpus 2 -- train examples/05_slurm/run.toml")
    assert printed == (example.folder / job).read_text(), "job.sh is not what heddle launch prints"
    file = example.folder / "examples/05_slurm/run.toml"
    file.write_text(file.read_text().replace("steps = 40", "steps = 2").replace("warmup_steps = 10", "warmup_steps = 1"))
    told = example.run(f"bash {job}", SLURM_JOB_ID=str(os.getpid()), SLURM_PROCID="0", SLURM_NTASKS="4")
    assert "dp=2 tp=1 pp=2" in told and told.count("step 2/2") == 1, told
    example.expect_checkpoint("slurm", 2)


def lora(example):
    def loss(model):
        told = example.run(f"heddle eval {model} --data examples/06_lora/chat.jsonl --chat --seq 64 --json 2>/dev/null")
        return json.loads(told)["loss"]

    few = "--set train.steps=6 --set optim.warmup_steps=1"
    example.run(f"heddle train examples/06_lora/base.toml {few}")
    example.run("heddle convert runs/lora-base --out runs/base")
    example.run("cp examples/06_lora/chat_template.jinja runs/base")
    example.run(f"heddle train examples/06_lora/run.toml --ranks 2 {few}")
    example.expect_checkpoint("lora", 6)
    saved = example.folder / "runs/lora/checkpoints/step-000006"
    assert json.loads((saved / "adapter_config.json").read_text())["lora_dropout"] == 0.05
    assert not (saved / "model.safetensors").exists()
    example.run("heddle convert runs/lora --out runs/tuned")
    before, adapted, merged = loss("runs/base"), loss("runs/lora"), loss("runs/tuned")
    assert adapted < before - 0.1 and abs(adapted - merged) < 1e-4, (before, adapted, merged)
    answers = {example.run(f"heddle generate {model} --chat --prompt 'Where is Mira?' --temperature 0 --max-tokens 8 "
                           "2>/dev/null") for model in ("runs/lora", "runs/tuned")}
    assert len(answers) == 1, answers


def experts(example):
    told = example.run("heddle train examples/07_experts/run.toml --ranks 4 --set train.steps=2 --set optim.warmup_steps=1")
    assert "dp=4 tp=1 pp=1 ep=4" in told and "ep all_to_all" in told, told
    example.expect_checkpoint("experts", 2)
    example.run("heddle eval runs/experts --data runs/demo-text/text.jsonl --max-tokens 2048 --routing-trace runs/experts.trace")
    told = example.run("heddle plan experts runs/experts.trace --ranks 4 --nodes 2 --out runs/placement.json")
    assert "hops of a token" in told, told
    example.run("heddle convert runs/experts --placement runs/placement.json --out runs/placed")


def lost_rank(example):
    told = example.run("examples/08_lost_rank/kill.sh --set train.steps=60 --set checkpoint.every=60", STEP="10")
    assert "3 ranks go on as epoch 1" in told and "stage 2 from the copy on rank 3; exact" in told, told
    lines = map(json.loads, (example.folder / "runs/lost-rank/metrics.jsonl").read_text().splitlines())
    assert [line["step"] for line in lines if "tokens" in line] == list(range(1, 61)), told
    example.expect_checkpoint("lost-rank", 60)
    skips = "--set recover.copies=0 --set 'recover.stages=\"skip\"'"
    example.run(f"heddle train examples/08_lost_rank/run.toml --ranks 4 --dry-run --set recover.elastic=true {skips}")


EXAMPLES = {"02_mesh": mesh, "03_eight_gpus": eight_gpus, "04_two_machines": two_machines, "05_slurm": slurm,
            "06_lora": lora, "07_experts": experts, "08_lost_rank": lost_rank}


def main():
    program, name = Path(sys.argv[1]), sys.argv[2]
    with tempfile.TemporaryDirectory(prefix="heddle-example-") as folder:
        EXAMPLES[name](Example(program, Path(folder)))
    print(f"{name} runs")


if __name__ == "__main__":
    main()
