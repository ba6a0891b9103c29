"""tessera.measure on a processor: what it times is in the tables by operator, shape and dtype, and plans take the cluster. What
cannot be measured is one line. Times themselves are looked at nowhere: they are this machine's."""

import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import unittest

import tessera
from tessera.errors import Refused

MODEL = '''
import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.RMSNorm(64), nn.Linear(64, 256, bias=False), nn.Linear(256, 64, bias=False)

    def forward(self, x):
        return x + self.down(F.silu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.layers = nn.Embedding(900, 64), nn.ModuleList(Block() for _ in range(3))
        self.register_buffer("scale", torch.ones(64))

    def forward(self, ids):
        x = self.embed(ids) * self.scale.to(self.embed.weight.dtype)
        for layer in self.layers:
            x = layer(x)
        return x


def make(batch=2, seq=40):
    return Net(), torch.randint(900, (batch, seq)), lambda output, ids: output.float().pow(2).mean()


def wrong():
    return Net(), torch.full((2, 40), 900), None
'''


class Measured(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.before = os.getcwd()
        os.chdir(cls.folder.name)
        os.environ["XDG_CACHE_HOME"] = cls.folder.name
        with open("net.py", "w", encoding="utf-8") as f:
            f.write(MODEL)

    @classmethod
    def tearDownClass(cls):
        os.chdir(cls.before)
        del os.environ["XDG_CACHE_HOME"]
        cls.folder.cleanup()

    def measured(self, target, out, **options):
        """{(kernel, dtype): operands' sizes} of the tables."""
        with contextlib.redirect_stderr(io.StringIO()):
            cluster = tessera.measure(target, out, device="cpu", steps=2, **options)
        self.assertTrue(os.path.isabs(cluster) and os.path.basename(cluster) == "cluster-processor.json", cluster)
        with open(os.path.join(out, "kernels-processor.json"), encoding="utf-8") as f:
            tables = json.load(f)["measured"]
        return cluster, {(t["kernel"], t["dtype"]): [tuple(point[2:]) for point in t["runs"]] for t in tables}

    def test_operators_shapes_and_dtypes(self):
        _, found = self.measured("net.py:make", "f32", dtype="fp32", batch=3)
        self.assertLessEqual({(120, 256, 64, 1), (120, 64, 256, 1)}, set(found["mm", "f32"]))
        self.assertTrue({("mm_weight_grad", "f32"), ("mm_input_grad", "f32"), ("silu", "f32"), ("silu_backward", "f32")} <= found.keys())
        self.assertNotIn(("mm", "bf16"), found)
        _, found = self.measured("net.py:make", "mixed", dtype="autocast-bf16", seq=20)
        self.assertIn((40, 256, 64, 1), found["mm", "bf16"])

    def test_a_trace_and_its_plan(self):
        os.mkdir("traced")   # beside another card's
        with open("traced/cluster-zebra.json", "w", encoding="utf-8") as f:
            f.write("{}")
        os.utime("traced/cluster-zebra.json", (1e9, 1e9))
        with contextlib.redirect_stderr(io.StringIO()):
            trace = tessera.trace("net.py:make", dtype="bf16", batch=4)
        cluster, found = self.measured(trace, "traced")
        self.assertIn((160, 256, 64, 1), found["mm", "bf16"])
        row, = trace.compare(cluster, {"fsdp": {}})
        self.assertGreater(row.step_time_s, 0)
        self.assertGreater(len(trace.plan(cluster, memory="1 GiB")), 0)

    def test_refusals(self):
        for words, target, options in (
                ("no GPU", "net.py:make", {"device": "cuda"}), ("device: 'tpu'", "net.py:make", {"device": "tpu"}),
                ("steps: 0", "net.py:make", {"steps": 0}), ("batch: (1, 2)", "net.py:make", {"batch": (1, 2)}),
                ("dtype: 'int8'", "net.py:make", {"dtype": "int8"}), ("no function 'make_it'", "net.py:make_it", {}),
                ("no such Python file", "other.py:make", {}), ("takes no parameter 'batch'", "net.py:wrong", {"batch": 3}),
                ("net.py:wrong: IndexError: index out of range", "net.py:wrong", {})):
            with self.assertRaises(Refused) as caught:
                tessera.measure(target, "none", **{"device": "cpu", **options})
            self.assertIn(words, str(caught.exception))
            self.assertNotIn("\n", str(caught.exception))
        self.assertFalse(os.path.exists("none"))

    def test_command(self):
        line = [sys.executable, "-m", "tessera", "measure", "net.py:make", "-o", "shell", "--device", "cpu", "--steps", "1"]
        done = subprocess.run(line, capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout.strip()), (0, os.path.abspath("shell/cluster-processor.json")), done.stderr)
        done = subprocess.run([*line, "--batch", "0"], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (2, "", 1), done.stderr)


if __name__ == "__main__":
    unittest.main()
