"""What each rank may have of a core, by control groups with a quota (needs root): ranks that share two cores are then as
fast as processors of their own, whatever the others and the shaper do."""

import os
from pathlib import Path

PERIOD_US = 10_000
ROOT = Path("/sys/fs/cgroup")


class Cores:
    """`share` of a core for each of so many ranks, until the end of a `with`."""

    def __init__(self, ranks, share):
        is_version_1 = (ROOT / "cpu").is_dir()
        base = ROOT / "cpu" if is_version_1 else ROOT
        self._places = [base / f"heddle-wire-{os.getpid()}-{rank}" for rank in range(ranks)]
        quota = str(int(share * PERIOD_US))
        self._limits = {"cpu.cfs_period_us": str(PERIOD_US), "cpu.cfs_quota_us": quota} if is_version_1 else {
            "cpu.max": f"{quota} {PERIOD_US}"}

    def __enter__(self):
        for place in self._places:
            place.mkdir()
            for name, value in self._limits.items():
                (place / name).write_text(value)
        return self

    def __exit__(self, *_):
        for place in self._places:
            place.rmdir()

    def of_rank(self, command):
        """The command, in the place of the rank whose environment it has."""
        enter = f'echo $$ > {str(self._places[0])[:-1]}$RANK/cgroup.procs && exec "$0" "$@"'
        return ["sh", "-c", enter, *command]
