#!/usr/bin/env python3
"""Compares training speed: `heddle bench train` against PyTorch, on the same machine in alternation.

    python3 benchmarks/peers/run_peers.py [--device cuda] [--eager] [--models llama-110m gpt2-124m] [--rounds 5]

See README.md next to this file.
"""

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TORCH_VERSION = "2.13.0"
REQUIREMENTS = [f"torch=={TORCH_VERSION}", "numpy"]
# Must say the same as torch_models.SHAPES, which only the virtual environment's Python can import.
BATCH_AND_SEQUENCE = {
    "cpu": {"llama-110m": (4, 512), "gpt2-124m": (4, 256)},
    "cuda": {"gpt2-124m": (32, 1024), "tinyllama-1.1b": (8, 2048), "llama3.2-1b": (4, 4096),
             "olmoe-4-layers": (8, 4096), "mixtral-8x300m": (6, 4096)},
}
# Models that are no presets of Heddle's: only where they are asked for.
OWN_CONFIGS = {path.stem: path for path in (HERE / "models").glob("*.json")}
COMPUTES_IN = {"cpu": "f32", "cuda": "bf16"}
ENOUGH_ROUNDS = 5
# glibc gives large blocks back to the system when they are freed, so every PyTorch step pays for faulting its
# activations in again. Keeping them saved about a tenth of the CPU time in a trial, at the same peak memory.
KEEP_FREED_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(10**12)}
HEDDLE_KEYS = ("tokens_per_second", "step_seconds_median", "step_seconds_spread", "model_tflops", "mfu",
               "gemm_tflops_measured", "fraction_of_gemm", "peak_memory_bytes", "predicted_memory_bytes", "parameters")


class PeerError(Exception):
    """Something the user has to put right; shown without a traceback."""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def ensure_venv(folder: Path) -> Path:
    python = folder / "bin" / "python"
    if not python.exists():
        say(f"making the virtual environment {folder} (PyTorch is a large download)")
        venv.create(folder, with_pip=True)
    # The metadata is asked rather than torch imported: quick, and it sees another version as well as none.
    probe = subprocess.run([python, "-c", "import importlib.metadata as m; print(m.version('torch'))"],
                           capture_output=True, text=True)
    if probe.stdout.strip().split("+")[0] != TORCH_VERSION:
        subprocess.run([python, "-m", "pip", "install", "--quiet", *REQUIREMENTS], check=True)
    return python


class TorchWorker:
    """A PyTorch process that has compiled and warmed up, asleep unless asked for steps."""

    def __init__(self, python: Path, model: str, eager: bool, options: argparse.Namespace) -> None:
        command = [python, HERE / "torch_worker.py", "--device", options.device, "--model", model, "--weights",
                   options.torch_weights, "--threads", str(options.threads), "--warmup", str(options.warmup),
                   "--compile-mode", options.compile_mode]
        command += ["--eager"] if eager else []
        # No GPU for the CPU's comparison, even where there is one; and no pool of compiler processes lingering beside
        # the measurement.
        environment = os.environ | ({"CUDA_VISIBLE_DEVICES": "", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
                                    if options.device == "cpu" else {})
        environment |= KEEP_FREED_MEMORY if options.tuned_malloc else {}
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env=environment)
        self.facts = self.reply()

    def reply(self) -> dict[str, Any]:
        line = self.process.stdout.readline()
        if not line:
            raise PeerError(f"the PyTorch process ended with status {self.process.wait()}; its messages are above")
        return json.loads(line)

    def measure(self, steps: int) -> dict[str, Any]:
        self.process.stdin.write(json.dumps(dict(steps=steps)) + "\n")
        self.process.stdin.flush()
        answer = self.reply()
        step_seconds = statistics.median(answer["step_seconds"])
        return dict(tokens_per_second=self.facts["batch"] * self.facts["sequence"] / step_seconds,
                    peak_bytes=answer["peak_bytes"], step_seconds=answer["step_seconds"])

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def measure_heddle(model: str, options: argparse.Namespace) -> dict[str, Any]:
    batch, sequence = BATCH_AND_SEQUENCE[options.device][model]
    command = [options.heddle, "bench", "train", "--model", OWN_CONFIGS.get(model, model), "--device", options.device,
               "--dtype", COMPUTES_IN[options.device], "--batch", str(batch), "--seq", str(sequence), "--steps",
               str(options.steps), "--json"]
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, stdout=output)
        _, status, usage = os.wait4(process.pid, 0)  # unlike Popen.wait, tells the peak memory of this very process
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        text = output.read()
    if process.returncode != 0:
        raise PeerError(f"{' '.join(map(str, command))} ended with status {process.returncode}:\n{text}")
    try:
        result = json.loads(text)
    except json.JSONDecodeError as error:
        raise PeerError(f"`heddle bench train --json` printed something that is not JSON ({error}):\n{text}") from error
    if missing := [key for key in HEDDLE_KEYS if key not in result]:
        raise PeerError(f"`heddle bench train --json` lacks the keys {', '.join(missing)}")
    # On a GPU the pool, since the other contender holds memory beside it.
    peak = usage.ru_maxrss * 1024 if options.device == "cpu" else result["reserved_memory_bytes"]
    return result | dict(peak_bytes=peak)


def same_size(torch_parameters: int, heddle_parameters: int) -> None:
    if abs(torch_parameters - heddle_parameters) > 0.01 * torch_parameters:
        raise PeerError(f"not the same model: PyTorch has {torch_parameters} parameters, Heddle {heddle_parameters}")


def compare(model: str, python: Path, options: argparse.Namespace) -> dict[str, Any]:
    say(f"{model}: preparing PyTorch")
    workers = {"torch_compiled": TorchWorker(python, model, eager=False, options=options)}
    if options.eager:
        workers["torch_eager"] = TorchWorker(python, model, eager=True, options=options)
    names = list(workers) + ([] if options.torch_only else ["heddle"])
    rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    try:
        for number in range(options.rounds):
            # The order turns every round, so that a machine growing slower or faster favours nobody.
            for name in names if number % 2 == 0 else reversed(names):
                result = (measure_heddle(model, options) if name == "heddle"
                          else workers[name].measure(options.steps))
                rounds[name].append(result)
                say(f"  round {number + 1}/{options.rounds} {name}: {result['tokens_per_second']:.1f} tokens/s")
    finally:
        for worker in workers.values():
            worker.close()

    facts = workers["torch_compiled"].facts
    if not options.torch_only:
        same_size(facts["parameters"], rounds["heddle"][0]["parameters"])
    batch, sequence = BATCH_AND_SEQUENCE[options.device][model]
    comparison: dict[str, Any] = dict(model=model, batch=batch, sequence=sequence, parameters=facts["parameters"],
                                      torch=facts["torch"], torch_optimizer=facts["optimizer"], contenders={}, ratios={})
    speeds = {name: [result["tokens_per_second"] for result in results] for name, results in rounds.items()}
    for name, results in rounds.items():
        comparison["contenders"][name] = dict(
            tokens_per_second_median=statistics.median(speeds[name]), tokens_per_second_min=min(speeds[name]),
            tokens_per_second_max=max(speeds[name]), peak_bytes=max(r["peak_bytes"] for r in results),
            rounds=results)
    for name in workers if not options.torch_only else ():
        # Round by round, because neighbours in time share the machine's mood.
        ratios = [ours / theirs for ours, theirs in zip(speeds["heddle"], speeds[name])]
        comparison["ratios"][name] = dict(median=statistics.median(ratios), min=min(ratios), max=max(ratios))
    return comparison


def device_model(device: str) -> str:
    if device == "cuda":
        query = ["nvidia-smi", "--query-gpu=name,driver_version,power.limit,clocks.max.sm", "--format=csv,noheader"]
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def heddle_version(heddle: Path) -> str:
    result = subprocess.run([heddle, "--version"], capture_output=True, text=True)
    return result.stdout.strip().splitlines()[0] if result.returncode == 0 and result.stdout.strip() else "unknown"


def markdown(report: dict[str, Any]) -> str:
    place = "the CPU" if report["device"] == "cpu" else "a GPU"
    how = "float32" if report["device"] == "cpu" else f"bf16, PyTorch's weights in {report['torch_weights']}"
    lines = [f"# Training on {place} against PyTorch, {report['date']}", "",
             f"{report['machine']}, cores: {report['cores']}; PyTorch {report['torch']}, threads:"
             f" {report['torch_threads']}; Heddle {report['heddle']}, Python {report['python']}.",
             f"{how}; alternating rounds: {report['rounds']}, timed steps in each: {report['steps']}; medians over the"
             " rounds, with the range in brackets.", ""]
    if report["rounds"] < ENOUGH_ROUNDS:
        lines += [f"**Fewer than {ENOUGH_ROUNDS} rounds: a trial, not a result.**", ""]
    lines += ["| model | contender | tokens/s | Heddle / contender | peak memory (GiB) |", "|---|---|---|---|---|"]
    for comparison in report["models"]:
        shape = f"{comparison['model']} {comparison['batch']}x{comparison['sequence']}"
        for name, result in comparison["contenders"].items():
            ratio = comparison["ratios"].get(name)
            ratio_text = f"{ratio['median']:.3f} [{ratio['min']:.3f}, {ratio['max']:.3f}]" if ratio else ""
            lines.append(f"| {shape} | {name} | {result['tokens_per_second_median']:.1f}"
                         f" [{result['tokens_per_second_min']:.1f}, {result['tokens_per_second_max']:.1f}]"
                         f" | {ratio_text} | {result['peak_bytes'] / 2**30:.2f} |")
    return "\n".join(lines) + "\n"


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compares Heddle's training speed with PyTorch's.")
    parser.add_argument("--device", choices=BATCH_AND_SEQUENCE, default="cpu")
    parser.add_argument("--models", nargs="+", help="default: all presets of the device")
    parser.add_argument("--torch-weights", choices=["f32", "bf16"], default="f32",
                        help="of PyTorch on a GPU: f32 under autocast, or all in bf16 (%(default)s)")
    parser.add_argument("--rounds", type=int, default=ENOUGH_ROUNDS, help="alternations (default %(default)s)")
    parser.add_argument("--steps", type=int, default=5, help="timed steps per contender and round (%(default)s)")
    parser.add_argument("--warmup", type=int, default=2, help="PyTorch steps before the first round (%(default)s)")
    parser.add_argument("--eager", action="store_true", help="also measure PyTorch without torch.compile")
    parser.add_argument("--compile-mode", default="default", help="mode of torch.compile (%(default)s)")
    parser.add_argument("--tuned-malloc", action="store_true", help="let PyTorch keep freed memory for reuse")
    parser.add_argument("--cpus", type=int, help="restrict every contender to this many CPUs (default: all)")
    parser.add_argument("--threads", type=int, help="PyTorch's threads (default: one per CPU)")
    parser.add_argument("--heddle", type=Path, default=ROOT / "build" / "heddle", help="the program to measure")
    parser.add_argument("--venv", type=Path, default=HERE / ".venv", help="PyTorch's virtual environment")
    parser.add_argument("--python", type=Path, help="an interpreter that has PyTorch, instead of an environment")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results", help="folder for the results")
    parser.add_argument("--torch-only", action="store_true", help="leave Heddle out, to try the PyTorch side")
    options = parser.parse_args()
    known = BATCH_AND_SEQUENCE[options.device]
    options.models = options.models or [model for model in known if model not in OWN_CONFIGS]
    if unknown := [model for model in options.models if model not in known]:
        parser.error(f"--models {' '.join(unknown)}: on {options.device} there are {', '.join(known)}")
    if min(options.rounds, options.steps) < 1:
        parser.error("--rounds and --steps must be at least 1")
    return options


def main() -> None:
    options = parse_options()
    if not options.torch_only and not os.access(options.heddle, os.X_OK):
        raise PeerError(f"{options.heddle} is not there: build Heddle in release mode first, or name it with --heddle")
    if options.cpus:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cpus])  # inherited by both contenders
    cores = len(os.sched_getaffinity(0))
    options.threads = options.threads or cores
    python = options.python or ensure_venv(options.venv)

    models = [compare(model, python, options) for model in options.models]
    report = dict(date=datetime.date.today().isoformat(), device=options.device,
                  machine=device_model(options.device), cores=cores, torch=models[0]["torch"],
                  torch_weights=options.torch_weights, torch_threads=options.threads, compile_mode=options.compile_mode,
                  tuned_malloc=options.tuned_malloc, python=platform.python_version(),
                  heddle="not measured" if options.torch_only else heddle_version(options.heddle),
                  rounds=options.rounds, steps=options.steps, models=models)
    options.results.mkdir(parents=True, exist_ok=True)
    kind = "-experts" if set(options.models) <= set(OWN_CONFIGS) else ""
    kind += "-tuned-malloc" if options.tuned_malloc else "-bf16-weights" if options.torch_weights == "bf16" else ""
    target = options.results / f"{options.device}-peers{kind}-{report['date']}.json"
    target.write_text(json.dumps(report, indent=1) + "\n")
    target.with_suffix(".md").write_text(markdown(report))
    print(markdown(report))
    say(f"written: {target} and {target.with_suffix('.md').name}")


if __name__ == "__main__":
    try:
        main()
    except PeerError as error:
        sys.exit(f"run_peers: {error}")
