"""Whatever command a message prints runs when it is pasted into the shell that it came from, and does what the message says."""

import contextlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

from tessera import program
from tessera.__main__ import main

SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
TRAIN = '''
import torch
import torch.nn as nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class Net(nn.Module):
    def __init__(self, asks):
        super().__init__()
        self.asks, self.first = asks, nn.Linear(32, 32)
        self.layers = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x):
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        return x * int(x.sum() > 3) if self.asks else x


def loss(output, batch):
    return output.float().pow(2).mean()


def make(batch=2, seq=4):
    return Net(False), torch.empty(batch, seq, 32), loss


def fixed():
    return Net(False), torch.empty(2, 32), loss


def asks(batch=2):
    return Net(True), torch.empty(batch, 32), loss
'''
# Lines of messages with a command: what is named here is run by this file's tests, the others have their reason.
PRINTED = {
    "experiments/study/job/job_traced.c": "test_refusals_of_a_trace",
    "experiments/torch/tessera/operators.py": "test_values_that_are_asked_for",
    "experiments/torch/tessera/configs/torchtitan.py": "the name of a command",
    "experiments/torch/tessera/tracer.py": "test_modules_that_have_no_hooks: an option",
    "experiments/study/plan/plan_report.c": "test_commands_of_studies",
    "experiments/study/report/report_answer.c": "test_commands_of_studies",
    "experiments/cli/studies/explain_what_if_text.c": "test_commands_of_studies",
    "experiments/cli/studies/compare_cmd.c": "test_parts",
    "experiments/study/html/html_page.c": "tests/report/page.py runs those of pages",
    "experiments/cli/calibrate/calibrate_write.c": "tests/cli/calibrate_host.sh runs what it wrote",
    "experiments/study/compare/measured.c": "names a measurement that is to be made",
    "experiments/cli/run/run_train.c": "names of subcommands", "experiments/cli/run/run_watch.c": "the name of a subcommand",
    "experiments/study/config/keys.def": "help", "experiments/torch/tessera/api.py": "the name of a command",
    "experiments/cli/main.c": "help", "experiments/cli/commands.c": "help; tests/cli/help.sh",
    "experiments/cli/args/args.c": "a synopsis", "experiments/cli/calibrate/calibrate_cmd.c": "a synopsis",
}


@contextlib.contextmanager
def in_folder(path):
    before = os.getcwd()
    os.chdir(path)
    try:
        yield
    finally:
        os.chdir(before)


class Pasted(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.folder = cls.temporary.name
        os.makedirs(f"{cls.folder}/bin")
        for name, text in (("train.py", TRAIN), ("bin/tessera", f'#!/bin/sh\nexec {shlex.quote(program.find())} "$@"\n')):
            with open(f"{cls.folder}/{name}", "w", encoding="utf-8") as f:
                f.write(text)
            os.chmod(f.name, 0o755)
        cls.paste("python -m tessera trace train.py:make -o model.trace --batch 1,2 --seq 4")

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    @classmethod
    def shell(cls, command):
        """Runs a line in the folder. The tracer runs here, with the words that a shell makes of its line: torch is loaded once."""
        if command.startswith("python -m tessera "):
            words = subprocess.run(["sh", "-c", "printf '%s\\0' " + command.removeprefix("python -m tessera ")], check=True,
                                   capture_output=True, text=True).stdout.split("\0")[:-1]
            out, err = io.StringIO(), io.StringIO()
            with in_folder(cls.folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), \
                    mock.patch.object(sys, "argv", ["tessera", *words]):
                status = main()
            return subprocess.CompletedProcess(command, status, out.getvalue(), err.getvalue())
        path = f"{cls.folder}/bin:" + os.environ["PATH"]
        return subprocess.run(["sh", "-c", command], cwd=cls.folder, env={**os.environ, "PATH": path}, capture_output=True,
                              text=True, check=False)

    @classmethod
    def paste(cls, command):
        done = cls.shell(command)
        if done.returncode:
            raise AssertionError(f"{command}: exit status {done.returncode}: {done.stdout[-300:]}{done.stderr[-600:]}")
        return done

    def experiment(self, trace="model.trace", **keys):
        document = {"model": {"trace": trace}, "cluster": "dgx-h100-1", "precision": {"param": "bf16"},
                    "strategies": {"base": {}}, **keys}
        with open(f"{self.folder}/mine.yaml", "w", encoding="utf-8") as f:
            json.dump(document, f)
        return "mine.yaml"

    def test_refusals_of_a_trace(self):
        """The command in the refusal makes a trace that serves what was refused; the old one stays."""
        fine = {"strategies": {"base": {"wrap": [{"modules": ["layers.*.up"]}, {"modules": [""]}]}}}
        with open(f"{self.folder}/model.trace", "rb") as f:
            before = f.read()
        every = [{"strategies": {"a": {"batch": 1}, "b": {"batch": 3}, "c": {"batch": 5, "checkpoint": 2}}},
                 fine | {"batch": 3, "precision": {"param": "none"}}, fine | {"batch": 2},
                 {"batch": 3, "seq": 8, "checkpoint": "full", "precision": {"param": "f16"}},
                 {"precision": {"param": "none"}, "batch": 2}, {"precision": {"param": "f32"}, "batch": 1}, {"batch": 3}]
        for keys in every if os.environ.get("TSR_THOROUGH") else every[:3]:
            with self.subTest(keys):
                trace, commands = "model.trace", []
                while True:
                    done = self.shell(f"tessera compare {self.experiment(trace, **keys)} --no-traces")
                    found = re.search(r"\((python -m tessera trace .*)\)$", done.stdout + done.stderr, re.M)
                    if not found:
                        break
                    commands.append(found.group(1))
                    self.assertLess(len(commands), 4, commands)
                    self.paste(found.group(1))
                    trace = shlex.split(found.group(1))[-1]
                self.assertEqual(done.returncode, 0, done.stderr + done.stdout)
                self.assertTrue(commands)
                self.assertEqual(len(commands), 2 if "a" in keys.get("strategies", ()) else 1, commands)
        with open(f"{self.folder}/model.trace", "rb") as f:
            self.assertEqual(f.read(), before)

    def test_a_function_in_one_size(self):
        self.paste("python -m tessera trace train.py:fixed -o fixed.trace")
        done = self.shell(f"tessera compare {self.experiment('fixed.trace', batch=3)}")
        self.assertEqual(done.returncode, 2)
        self.assertIn("train.py:fixed has no parameter `batch`", done.stderr)
        self.assertNotIn("python -m", done.stderr)
        done = self.shell(f"tessera compare {self.experiment('fixed.trace', precision={'param': 'none'})}")
        self.paste(re.search(r"\((python -m .*)\)$", done.stderr, re.M).group(1))

    def test_values_that_are_asked_for(self):
        command = "python -m tessera trace train.py:asks -o asks.trace"
        done = self.shell(command)
        self.assertEqual(done.returncode, 2)
        option = re.search(r"give it with (--readback .*=VALUE'?),", done.stderr).group(1)
        self.paste(f"{command} {option.replace('VALUE', '1')}")
        done = self.shell(f"tessera compare {self.experiment('asks.trace', batch=7)}")
        again = re.search(r"\((python -m .*)\)$", done.stderr, re.M).group(1)
        self.assertIn("=1'", again)   # the answer that was given
        self.paste(again)

    def test_commands_of_studies(self):
        """Those that compare, plan and explain end with, of a trace and of a built-in model in sweeps."""
        sweeps = {"model": "llama-3.2-1b", "seq": 512, "sweeps": {"batch": [1, 2]}, "precision": {}}
        space = {"plan": {"space": {"optimizer.variant": ["foreach", "fused"]}}, "strategies": {"base": {}, "flat": {"wrap": "root"}}}
        ran = set()
        for keys, strategy in (({"batch": 1} | space, "base"), (sweeps | space, "base@batch=2")):
            for command in ("compare {} --no-traces", "plan {} --strategy base --commands", f"explain {{}} --strategy {strategy}"):
                said = self.paste("tessera " + command.format(self.experiment(**keys))).stdout
                for found in re.findall(r"^    (tessera (?:[^\n]*\\\n)*[^\n]*)$", said, re.M):
                    with self.subTest(found):
                        self.paste(found.replace("FOLDER", "folder").replace("FILE", "file.yaml"))
                        ran.add(command.split()[0])
        self.assertEqual(ran, {"compare", "plan", "explain"})

    def test_parts(self):
        file = self.experiment(model="llama-3.2-1b", seq=512, precision={}, sweeps={"batch": [1, 2]})
        for i in (1, 2):
            done = self.paste(f"tessera compare {file} --part {i}/2 --out part-{i}")
        found = re.search(r"all of them: (tessera compare --merge DIR\.\.\.)$", done.stderr, re.M).group(1)
        self.paste(found.replace("DIR...", "part-1 part-2"))

    def test_every_place_that_prints_a_command_is_known(self):
        """In texts, other than comments: `tessera SUBCOMMAND`, `tessera %s ` and `python -m tessera`."""
        subcommands = re.findall(r"^  ([a-z]+) ", self.paste("tessera help all").stdout, re.M)
        pattern = re.compile(rf'"[^"\n]*(?<![`\w])(python -m tessera \w|tessera (%s |(?:{"|".join(subcommands)})\b))|--(wrap|readback) \{{')
        found = set()
        for at, folders, names in os.walk(os.path.join(SOURCE, "experiments")):
            folders[:] = [f for f in folders if f not in ("build", "examples", "families", "guide")]
            for name in names:
                path = os.path.relpath(os.path.join(at, name), SOURCE)
                if name.endswith((".c", ".def", ".py")):
                    with open(os.path.join(at, name), encoding="utf-8") as f:
                        text = re.sub(r"/\*.*?\*/|\"\"\".*?\"\"\"|^\s*#.*?$", "", f.read(), flags=re.S | re.M)
                    if pattern.search(text):
                        found.add(path)
        self.assertEqual(sorted(found - set(PRINTED)), [])
        self.assertEqual(sorted(set(PRINTED) - found), [])


if __name__ == "__main__":
    unittest.main()
