"""Runs of `heddle train` over links of a given rate and delay, in turns: what the benchmarks of this folder have in
common. Ranks are processes with one thread each, in network namespaces joined by tests/links (needs root), or on this
machine's loopback where a link is to take no time."""

import copy
import json
import os
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import tomllib
from contextlib import nullcontext
from pathlib import Path

from cores import Cores
from system import machine_text

ROOT = Path(__file__).resolve().parent.parent.parent
VOCABULARY = 1024
LOOPBACK = None  # in place of a link's options


def llama(hidden, layers, heads, vocabulary=VOCABULARY, tied=False):
    """A model in the form of config.json."""
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden,
            "intermediate_size": hidden * 8 // 3, "num_hidden_layers": layers, "num_attention_heads": heads,
            "num_key_value_heads": heads, "vocab_size": vocabulary, "max_position_embeddings": 1024,
            "hidden_act": "silu", "rms_norm_eps": 1e-5, "tie_word_embeddings": tied}


def parameters(config):
    """Of matrices; norms are few."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    tables = (1 if config["tie_word_embeddings"] else 2) * config["vocab_size"] * hidden
    return config["num_hidden_layers"] * (4 * hidden * hidden + 3 * hidden * inner) + tables


def event_times(folder):
    """Wall-clock time of each step's end, from the run's TensorBoard file: Event {double wall_time = 1; int64 step = 2}."""
    times = {}
    for path in sorted(folder.glob("events.out.tfevents.*")):
        data, at = path.read_bytes(), 0
        while at + 12 <= len(data):
            (length,) = struct.unpack_from("<Q", data, at)
            event = data[at + 12:at + 12 + length]
            at += 16 + length
            (wall,) = struct.unpack_from("<d", event, 1)
            step, shift, i = 0, 0, 10
            while True:
                step |= (event[i] & 0x7F) << shift
                shift, i = shift + 7, i + 1
                if event[i - 1] < 0x80:
                    break
            times.setdefault(step, wall)
    times.pop(0, None)
    return times


class Turn:
    """One run: what its steps took from one end to the next, all that happens between them included."""

    def __init__(self, folder, said):
        times = event_times(folder)
        self.said = said  # by the program, to people
        self.report = json.loads((folder / "report.json").read_text())
        self.ends = [times[step] for step in sorted(times)]

    def seconds(self, first=1):
        """By step, without the first ones, in which buffers are made."""
        return [later - earlier for earlier, later in zip(self.ends[first - 1:], self.ends[first:])]

    @property
    def predicted(self):
        return self.report["step_seconds"]["predicted"]


class Bench:
    """A folder with text, tokenizer and models, and runs in it."""

    def __init__(self, build, threads=1, share=None):
        """`share`: of a core, for each rank; None: what it gets."""
        self.build = Path(build).resolve()
        self.share = share
        self.threads = threads
        self._place = tempfile.TemporaryDirectory(prefix="heddle-wire-")
        self.folder = Path(self._place.name)
        self.turns = 0
        self._call([self.build / "heddle", "demo-text", "--bytes", 2000000, "--out", "text.jsonl"])
        self._call([self.build / "heddle", "tokenizer", "train", "text.jsonl", "--vocab", VOCABULARY, "--special",
                    "<|endoftext|>", "--out", "tokenizer.json"])
        self._call([self.build / "heddle", "tokenize", "text.jsonl", "--tokenizer", "tokenizer.json", "--out", "text.tokens"])

    def _call(self, command):
        result = subprocess.run([str(word) for word in command], cwd=self.folder, capture_output=True, text=True)
        if result.returncode != 0:
            sys.exit(f"{' '.join(map(str, command))} ended with status {result.returncode}:\n{result.stderr}")
        return result.stderr

    def train(self, config, ranks, link, steps, settings, system=None, keep=None):
        """`link`: options of shaped_run, or LOOPBACK. `settings`: section.key=value. `keep`: a folder for the run."""
        self.turns += 1
        folder = Path(keep).resolve() if keep else self.folder / f"run{self.turns}"
        model = self.folder / f"model{self.turns}.json"
        model.write_text(json.dumps(config))
        usual = {"model.config": model, "data.train": "text.tokens", "data.tokenizer": "tokenizer.json",
                 "data.holdout": 0, "data.documents": "ignore", "train.steps": steps, "checkpoint.every": 0,
                 "checkpoint.on_exit": "false", "optim.schedule": "constant", "run.dir": folder,
                 "run.threads": self.threads}
        if system:
            usual["observe.system"] = Path(system).resolve()
        usual.update(setting.split("=", 1) for setting in settings)
        run = self.folder / "run.toml"
        run.write_text('[run]\nname = "wire"\n')
        command = [str(self.build / "heddle"), "train", str(run), "--fresh"]
        for name, value in usual.items():
            command += ["--set", f"{name}={value}"]
        with self._cores(ranks) as cores:
            if cores:
                command = cores.of_rank(command)
            if link is LOOPBACK:
                said = self._on_loopback(command, ranks)
            else:
                said = self._call([self.build / "tests/links/shaped_run", ranks, *link, "--", *command])
        return Turn(folder, said)

    def predict_with(self, machine, ranks, link):
        """The machine file for `train` of ranks that share the calibrated `machine` and have such a link, which is
        measured; None without a machine."""
        if machine is None:
            return None
        command = [str(self.build / "heddle"), "bench", "link", "--warm-up", "4", "--seconds", "10", "--json"]
        with self._cores(ranks) as cores:
            said = subprocess.run([str(word) for word in [self.build / "tests/links/shaped_run", ranks, *link, "--",
                                                          *(cores.of_rank(command) if cores else command)]],
                                  cwd=self.folder, capture_output=True, text=True)
        if said.returncode != 0:
            sys.exit(f"bench link ended with status {said.returncode}:\n{said.stderr}")
        measured = json.loads(said.stdout)
        rates = sorted(8e-6 * one["bytes_per_second"] for one in measured["links"])
        among_all = f", {8e-6 * measured['exchange']['bytes_per_second']:.1f} to all at once" if "exchange" in measured else ""
        print(f"Measured links: {rates[0]:.1f} to {rates[-1]:.1f} Mbit/s to the next rank{among_all}.\n", flush=True)
        part = self._part_of_a_core() if self.share else None
        self.turns += 1
        system = self.folder / f"system{self.turns}.toml"
        system.write_text(machine_text(tomllib.loads(Path(machine).read_text()), ranks, part, measured))
        return system

    def _part_of_a_core(self):
        """What a rank with its share of a core does of what a core does: steps of a model of one rank, with and without."""
        def step_of(share):
            bench = copy.copy(self)
            bench.share = share
            turn = bench.train(llama(hidden=512, layers=4, heads=8), 1, LOOPBACK, 5, ["data.seq_len=256", "train.tokens_per_step=256"])
            self.turns = bench.turns
            return statistics.median(turn.seconds())
        part = step_of(None) / step_of(self.share)
        print(f"A rank with {self.share:g} of a core does {part:.3f} of what a core does.\n", flush=True)
        return part

    def _cores(self, ranks):
        return Cores(ranks, self.share) if self.share else nullcontext()

    def _on_loopback(self, command, ranks):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        running = []
        for rank in range(ranks):
            place = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": ranks,
                     "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            environment = dict(os.environ, **{name: str(value) for name, value in place.items()})
            running.append(subprocess.Popen(command, cwd=self.folder, env=environment, stdout=subprocess.DEVNULL,
                                            stderr=subprocess.PIPE, text=True))
        problems = [one.communicate()[1] for one in running]
        for one, problem in zip(running, problems):
            if one.returncode != 0:
                sys.exit(f"{' '.join(command)} ended with status {one.returncode}:\n{problem}")
        return "".join(problems)


def link_options(rate, delay, shared=True):
    """Options of shaped_run: every rank with its own connection of this rate (`shared` by all its peers), or every pair
    of ranks with a link of this rate; `delay` each way."""
    limit = f"rate={rate}"
    return ["--rest", "250", "--node", limit, "--link", f"delay={delay}"] if shared else ["--rest", "250", "--link", limit, f"delay={delay}"]


def column(value):
    """Of a table, where a machine file may be missing."""
    return "-" if value is None else f"{value:.3f}"


def spread(values):
    """Median, and the least and the largest."""
    return f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def add_common_options(parser, share):
    parser.add_argument("--build", type=Path, default=ROOT / "build")
    parser.add_argument("--share", type=float, default=share, help="of a core, for each rank; 0: what it gets")
    parser.add_argument("--machine", type=Path, help="what heddle doctor --calibrate wrote, for predictions")


def machine_line(share=None):
    cores = len(os.sched_getaffinity(0))
    model = next((line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
                  if line.startswith("model name")), "a processor")
    part = f", {share:g} of a core" if share else ""
    return f"{cores} cores of {model}, load average {os.getloadavg()[0]:.1f}; one thread for each rank{part}."
