"""The table of architectures: a model is traced and checked, what took too long is refused, and what is in the
results is not run again."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

from tessera import program

HERE = os.path.dirname(os.path.abspath(__file__))
TABLE = os.path.join(HERE, "..", "..", "experiments", "torch", "families", "table.py")


class Table(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.results = os.path.join(self.folder.name, "results.json")

    def tearDown(self):
        self.folder.cleanup()

    def run_table(self, *arguments):
        done = subprocess.run([sys.executable, TABLE, "-o", self.results, "--jobs", "1", *arguments], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False,
                              env={**os.environ, "TESSERA": program.find()})
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def rows(self):
        with open(self.results, encoding="utf-8") as f:
            return {row["name"]: row for row in json.load(f)}

    def test_an_architecture_is_checked_and_kept(self):
        self.run_table("causal/gpt2", "--seconds", "0.01")
        self.assertEqual((self.rows()["causal/gpt2"]["verdict"], self.rows()["causal/gpt2"]["reason"]),
                         ("refused", "more than 0.01 s"))
        self.run_table("causal/gpt2")
        self.assertEqual(self.rows()["causal/gpt2"]["verdict"], "exact", self.rows())
        self.run_table("causal/dbrx")   # whose published default lacks what the model reads
        self.assertEqual(self.rows()["causal/dbrx"]["verdict"], "no model", self.rows())
        counts = "exact 1, refused 0, wrong 0, no model 1"
        self.assertEqual(self.run_table("--table"), f"# causal: {counts}\n# all: {counts}\narchitecture\tverdict\treason\n"
                         f"causal/dbrx\tno model\t{self.rows()['causal/dbrx']['reason']}\ncausal/gpt2\texact\n")


if __name__ == "__main__":
    unittest.main()
