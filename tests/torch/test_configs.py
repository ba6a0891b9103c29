"""Configurations of torchtitan: those that the program writes are read as what they were written from; what is not known is
refused; the shell's command says what it costs. Torch is not needed."""

import json
import os
import shlex
import subprocess
import sys
import tempfile
import unittest

import tessera
from tessera import configs, program
from tessera.errors import Refused

BASE = """
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 2
seq_len = 4096
"""
STRATEGIES = {
    "plain": {}, "full": {"checkpoint": "full", "reshard_after_forward": False}, "ops": {"checkpoint": "selective_op"},
    "second": {"checkpoint": 2, "accumulation": {"steps": 3}}, "hybrid": {"mesh": {"replicate": 2, "shard": 4}},
    "compiled": {"dialect": "compile", "compile": {"components": ["model"]}}, "offload": {"offload": "cpu_pinned"},
    "tp": {"tp": 2}, "loop": {"optimizer": {"variant": "loop"}}}


class Torchtitan(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = self.temporary.name

    def tearDown(self):
        self.temporary.cleanup()

    def write(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        return path

    def test_what_is_written_is_read_again(self):
        study = self.write("study.yaml", json.dumps({
            "stack": "torchtitan-2026", "model": "llama-3.1-8b", "cluster": "dgx-h100-1", "batch": 1, "seq": 2048,
            "strategies": STRATEGIES}))
        out = os.path.join(self.folder, "written")
        rows = {row["strategy"]: row for row in json.loads(program.run(
            ["compare", study, "--no-traces", "--format", "json", "--emit", "torchtitan", out]))["rows"]}
        for name in STRATEGIES:
            with open(os.path.join(out, name + ".toml"), encoding="utf-8") as f:
                text = f.read().replace("[model]", '[model]\nname = "llama3"\nflavor = "8B"')
            read = tessera.torchtitan(self.write(name + ".toml", text), "dgx-h100-1")
            path = os.path.join(self.folder, name + ".yaml")
            read.save(path)
            row = read.costs(path)
            with self.subTest(name):
                for what in ("step_time_s", "peak_allocated_bytes", "peak_reserved_bytes", "program_hash"):
                    self.assertEqual(row[what], rows[name][what], what)

    def test_what_is_not_known_is_refused(self):
        cases = {
            "[parallelism]\npipeline_parallel_degree = 2": r"\[parallelism\] pipeline_parallel_degree: found 2; allowed: 1",
            "[parallelism]\ntensor_parallel_degree = 3": r"found 1 replicas of -1 shards with tensor parallelism of 3",
            "[parallelism]\ndata_parallel_shard_degree = true": r"data_parallel_shard_degree: found True; allowed: an integer",
            "[parallelism]\ndata_parallel_shard_degree = 1\ndata_parallel_replicate_degree = 8": r"found 1, with which torchtitan wraps nothing",
            "[activation_checkpoint]\nmode = \"some\"": r"mode: found 'some'; allowed: none, full, selective",
            "[activation_checkpoint]\nselective_ac_option = \"x\"": r"selective_ac_option: found 'x'; allowed: op, or",
            "[optimizer]\nname = \"Muon\"": r"\[optimizer\] name: found 'Muon'; allowed: AdamW",
            "[optimizer]\nearly_step_in_backward = true": r"\[optimizer\] early_step_in_backward: found True, which is not known",
            "[parallelism]\nno_such_key = 1": r"\[parallelism\] no_such_key: found 1, which is not known",
            "[nowhere]\nkey = 1": r"\[nowhere\] key: found 1, which is not known"}
        for text, words in cases.items():
            with self.subTest(text), self.assertRaisesRegex(Refused, words):
                tessera.torchtitan(self.write("train.toml", BASE + text + "\n"), "dgx-h100-1")
        for text, words in (("a = ", "Invalid value"), ("a = 1", "outside of its sections"),
                            (BASE.replace("8B", "9B"), "flavor: found llama3 9B; allowed: llama3 8B"),
                            (BASE.replace("seq_len", "global_batch_size = 24\nseq_len"), "found 24; allowed: -1, or a multiple of the 16"),
                            (BASE.replace("[training]", "converters = [\"float8\"]\n[training]"), "converters: found \\['float8'\\]")):
            with self.subTest(text), self.assertRaisesRegex(Refused, words):
                tessera.torchtitan(self.write("train.toml", text), "dgx-h100-1")

    def test_the_shell_says_what_it_costs(self):
        path = self.write("my train.toml", BASE)
        done = subprocess.run([sys.executable, "-m", "tessera", "config", path, "--cluster", "dgx-h100-1"], text=True,
                              stdout=subprocess.PIPE, check=True)
        for words in ("local_batch_size = 2", "batch: 2", "world: 8", "tokens/s per GPU", "One change for memory:", "checkpoint.every=full"):
            self.assertIn(words, done.stdout)
        commands = [shlex.split(line)[1:] for line in done.stdout.splitlines() if line.startswith("  tessera ")]
        self.assertEqual([command[0] for command in commands], ["compare", "explain", "overlap"])
        for command in commands:
            self.assertIn("train", program.run(command))
        refused = subprocess.run([program.find(), "compare", path], stderr=subprocess.PIPE, text=True, check=False)
        self.assertEqual(refused.returncode, 2)
        self.assertIn("python -m tessera config FILE --cluster NAME", refused.stderr)
        self.assertEqual(configs.torchtitan(path, "dgx-h100-1").ignored, [])


if __name__ == "__main__":
    unittest.main()
