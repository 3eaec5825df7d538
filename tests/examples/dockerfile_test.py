"""What can be said of the Dockerfile without Docker.

    dockerfile_test.py FOLDER_OF_THE_BUILD
"""

import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(sys.argv.pop(1)).resolve()


def instructions():
    """(word, rest) of each, with continued lines joined."""
    text = re.sub(r"\\\n", " ", (ROOT / "Dockerfile").read_text())
    lines = [line.strip() for line in text.split("\n")]
    return [tuple(line.split(None, 1)) for line in lines if line and not line.startswith("#")]


def output_of(*command, **options):
    return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE, **options).stdout


class Dockerfile(unittest.TestCase):
    def test_copies_what_is_there(self):
        ignored = [line for line in (ROOT / ".dockerignore").read_text().split() if not line.startswith("#")]
        for word, rest in instructions():
            if word != "COPY":
                continue
            *sources, _ = [part for part in rest.split() if not part.startswith("--")]
            for source in sources:
                if "--from=build" in rest:
                    self.assertTrue((BUILD / Path(source).name).exists(), source)
                else:
                    self.assertTrue((ROOT / source).exists(), source)
                    self.assertNotIn(source.split("/")[0], ignored)

    def test_runs_commands_that_a_shell_understands(self):
        for word, rest in instructions():
            if word == "RUN":
                subprocess.run(["sh", "-n", "-c", rest], check=True)

    def test_uses_options_that_exist(self):
        text = (ROOT / "Dockerfile").read_text()
        make = (ROOT / "Makefile").read_text()
        for variable in re.findall(r"make (.*)", text)[-1].split():
            self.assertRegex(make, rf"(?m)^{variable.split('=')[0]} +\?=")
        listed = output_of(ROOT / "scripts/setup.sh", "--run", "--list").split()
        self.assertIn("libopenblas0-openmp", listed)

    @unittest.skipUnless(shutil.which("dpkg-query"), "needs Debian")
    def test_installs_what_the_program_is_linked_with(self):
        listed = output_of(ROOT / "scripts/setup.sh", "--run", "--list").split()
        for library in re.findall(r"=> (/\S+)", output_of("ldd", BUILD / "heddle")):
            owners = subprocess.run(["dpkg-query", "-S", f"*/{Path(library).resolve().name}"], text=True, check=False,
                                    stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
            packages = {line.split(":")[0] for line in owners.splitlines()}
            self.assertTrue(packages & set(listed), f"{library} of {packages} is not among {listed}")

    def test_the_program_runs_where_it_is_copied_to(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ["heddle", "libheddle_mpi.so"]:
                shutil.copy(BUILD / name, folder)
            told = output_of(f"{folder}/heddle", "--version", cwd=folder, env={"PATH": "/usr/bin:/bin"})
            self.assertRegex(told, r"^\d+\.\d+\.\d+")


if __name__ == "__main__":
    unittest.main()
