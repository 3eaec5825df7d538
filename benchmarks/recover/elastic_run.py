"""A training run whose ranks are lost and come again, as benchmarks start it, disturb it and watch it. Only the standard library is needed."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))
from heddle_calls import make_tokens  # noqa: E402

RANKS = 4
MESHES = {
    "dp2xpp2": {"parallel.dp": 2, "parallel.pp": 2},
    "pp4": {"parallel.pp": 4, "recover.copies": 1},
}
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 512,
    "vocab_size": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
}
SETTINGS = {
    "data.seq_len": 256,
    "train.microbatch": 1,
    "train.tokens_per_step": 1024,
    "train.steps": 1000000,
    "optim.lr": 3e-4,
    "parallel.zero": 0,
    "checkpoint.every": 100,
    "checkpoint.keep": 2,
    "observe.console_every": 20,
    "recover.elastic": True,
    "recover.timeout": 60,
    "run.threads": 1,
    "run.deterministic": True,
}
TOKEN = "what who may join these runs knows"
LOST = 4  # the status of a process that the others do without


def write_run_file(file, settings):
    """Of keys with their section in front."""
    sections = {}
    for key, value in settings.items():
        section, name = key.split(".", 1)
        sections.setdefault(section, []).append(f"{name} = {json.dumps(value)}")
    file.write_text("".join(f"[{section}]\n" + "\n".join(lines) + "\n\n" for section, lines in sections.items()))


def prepare(heddle, text, out, name, settings):
    """The run file of a new run in out/name; its model has 1.8 million parameters."""
    shutil.rmtree(out / name, ignore_errors=True)
    make_tokens(heddle, text, MODEL["vocab_size"], out)
    (out / "config.json").write_text(json.dumps(MODEL, indent=1))
    own = {"model.config": str((out / "config.json").resolve()), "data.train": str((out / "text.tokens").resolve()), "run.dir": str((out / name).resolve())}
    run_file = out / f"{name}.toml"
    write_run_file(run_file, own | SETTINGS | settings)
    return run_file


def end_by_signals():
    """Also where a shell has started the script in the background: what it has started is stopped then."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit("stopped by a signal"))


class Watched:
    """What a run writes, as it comes: when each step was finished, and its epochs (with the time at which they were seen as `seen`)."""

    def __init__(self, folder):
        self.folder, self.steps, self.epochs = folder, {}, []
        self._metrics = self._rows = None
        self._ends = False
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    @property
    def step(self):
        return max(self.steps, default=0)

    def close(self):
        self._ends = True
        self._thread.join()
        self._look()

    def _follow(self):
        while not self._ends:
            self._look()
            time.sleep(0.01)

    def _look(self):
        now = time.time()
        if lines := self._changed("epochs.jsonl", "_rows", None):
            rows = [json.loads(line) for line in lines]
            for row in rows[len(self.epochs) :]:
                self.epochs.append(row | {"seen": now})
        if lines := self._changed("metrics.jsonl", "_metrics", 1 << 13):
            steps = [json.loads(line)["step"] for line in lines if '"loss"' in line]
            for step in steps:
                self.steps.setdefault(step, now)
            # A run that has gone back makes later ones again.
            for step in [step for step in self.steps if steps and step > steps[-1]]:
                del self.steps[step]

    def _changed(self, name, kept, most):
        """Whole lines of a file that is another than before, or of its last bytes."""
        try:
            with open(self.folder / name, "rb") as file:
                state = os.fstat(file.fileno())
                if (state.st_ino, state.st_size) == getattr(self, kept):
                    return None
                setattr(self, kept, (state.st_ino, state.st_size))
                begin = 0 if most is None else max(0, state.st_size - most)
                file.seek(begin)
                text = file.read().decode()
        except FileNotFoundError:
            return None
        lines = text[: text.rfind("\n") + 1].splitlines()
        return lines[1:] if begin > 0 else lines


def environment_of(pid):
    try:
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    return dict(entry.decode().split("=", 1) for entry in entries if b"=" in entry)


def children_of(pid):
    try:
        return [int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()]
    except OSError:
        return []


def listening_ports(pid):
    sockets = set()
    try:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            target = os.readlink(entry)
            if target.startswith("socket:["):
                sockets.add(target[8:-1])
        lines = Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]
    except OSError:
        return set()
    listening = "0A"
    fields = [line.split() for line in lines]
    return {int(own[1].split(":")[1], 16) for own in fields if own[3] == listening and own[9] in sockets}


def settings_of(words):
    """Of KEY=VALUE, with values in JSON."""
    return {key: json.loads(value) for key, value in (word.split("=", 1) for word in words)}


class Launched:
    """By heddle launch --restart, on this machine. Processes are numbered by the place in which the launcher starts them."""

    def __init__(self, heddle, run_file, log, ranks=RANKS, restart=True):
        words = [heddle, "launch", "--ranks", str(ranks), *(["--restart", "--most-restarts", "100000"] if restart else [])]
        self.log = open(log, "w")
        environment = os.environ | {"HEDDLE_TOKEN": TOKEN}
        self.process = subprocess.Popen([*words, "--", "train", str(run_file), "--fresh"], env=environment, stdout=self.log, stderr=subprocess.STDOUT)

    def pids(self):
        """By place."""
        places = {environment_of(child).get("RANK"): child for child in children_of(self.process.pid)}
        return {int(place): child for place, child in places.items() if place}

    def place_of_members(self, lines):
        """By rank, of the lines of the file members."""
        by_port = {port: place for place, pid in self.pids().items() for port in listening_ports(pid)}
        return [by_port.get(int(line.rsplit(":", 1)[1])) for line in lines]

    def signal(self, place, number):
        os.kill(self.pids()[place], number)

    def is_running(self):
        return self.process.poll() is None

    def stop(self):
        if self.is_running():
            for pid in self.pids().values():
                os.kill(pid, signal.SIGCONT)
            self.process.send_signal(signal.SIGINT)
        try:
            status = self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        self.log.close()
        return status


class Netted:
    """Each in a network namespace, as on machines of their own; whoever is lost is started again, to join the others."""

    def __init__(self, heddle, run_file, log, network, ranks=RANKS):
        self.heddle, self.run_file, self.network, self.ranks = heddle, run_file, network, ranks
        self.log = open(log, "w")
        self.processes, self.statuses, self._ends = {}, [], False
        for place in range(ranks):
            self._start(place, "--fresh", "--elastic")
        self._thread = threading.Thread(target=self._keep, daemon=True)
        self._thread.start()

    def _start(self, place, *words):
        from wires import address

        variables = dict(RANK=place, WORLD_SIZE=self.ranks, LOCAL_RANK=0, LOCAL_WORLD_SIZE=1, MASTER_ADDR=address(0), MASTER_PORT=29511, HEDDLE_TOKEN=TOKEN)
        command = [self.heddle, "train", str(self.run_file), *words]
        environment = os.environ | {name: str(value) for name, value in variables.items()}
        self.processes[place] = subprocess.Popen(command, env=environment, stdout=self.log, stderr=subprocess.STDOUT, preexec_fn=lambda: self.network.enter(place))

    def _keep(self):
        while not self._ends:
            for place, process in list(self.processes.items()):
                status = process.poll()
                if status is None:
                    continue
                del self.processes[place]
                self.statuses.append(status)
                if (status == LOST or status < 0) and self.processes and not self._ends:
                    self._start(place, "--join", "--ranks", str(self.ranks))
            time.sleep(0.02)

    def pids(self):
        return {place: process.pid for place, process in self.processes.items()}

    def place_of_members(self, lines):
        return [int(line.split(":")[0].split(".")[3]) - 1 for line in lines]

    def signal(self, place, number):
        self.processes[place].send_signal(number)

    def is_running(self):
        return bool(self.processes)

    def stop(self):
        self._ends = True
        self._thread.join()
        for process in self.processes.values():
            process.send_signal(signal.SIGINT)
        for process in self.processes.values():
            try:
                self.statuses.append(process.wait(60))
            except subprocess.TimeoutExpired:
                process.kill()
                self.statuses.append(process.wait())
        self.log.close()
        return max(self.statuses)


def members_by_rank(run, folder):
    """Places of the processes, by their rank in the epoch."""
    lines = [line for line in (folder / "members").read_text().splitlines() if line and not line.startswith("#")]
    return run.place_of_members(lines)
