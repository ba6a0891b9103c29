"""The examples: their table has today's figures, code written for each takes what was predicted, the notebook's cells run in order."""

import ast
import importlib.util
import io
import json
import os
import shutil
import sys
import tempfile
import unittest
from contextlib import redirect_stderr, redirect_stdout
from unittest import mock

from tessera import check

EXAMPLES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "experiments", "torch", "examples")


def cells(path):
    with open(path, encoding="utf-8") as f:
        return ["".join(cell["source"]) for cell in json.load(f)["cells"] if cell["cell_type"] == "code"]


def run_cell(text, names):
    """As a notebook runs it: the value of a last expression is what is shown."""
    tree = ast.parse(text)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names) if last else None


class Examples(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.here = os.getcwd()
        for name in os.listdir(EXAMPLES):
            shutil.copy(os.path.join(EXAMPLES, name), self.temporary.name)
        os.chdir(self.temporary.name)
        self.environment = mock.patch.dict(os.environ, XDG_CACHE_HOME=self.temporary.name)
        self.environment.start()

    def tearDown(self):
        self.environment.stop()
        os.chdir(self.here)
        self.temporary.cleanup()

    def test_the_table_has_the_figures_and_the_code_takes_them(self):
        with mock.patch.object(sys, "path", [os.getcwd(), *sys.path]):
            import pictures
        if not importlib.util.find_spec("peft"):
            del pictures.EXAMPLES["lora_peft"]
        lines, first = pictures.table()
        with open("README.md", encoding="utf-8") as f:
            stated = f.read().splitlines()
        self.assertEqual([line for line in lines if line not in stated], [])
        self.assertEqual({line for line in stated if line.startswith("| `") and line.count("|") == 5
                          and line.split("`")[1][:-3] in pictures.EXAMPLES}, set(lines[2:]))
        for name, row in first.items():
            with self.subTest(name):
                row.write("strategy.py", check=False)
                _, found = check.check("strategy.py", name + ".py:make", named=row._words[0])
                self.assertEqual(found, [])

    def test_the_notebook(self):
        names, shown, said = {}, [], io.StringIO()
        for text in cells("strategies.ipynb"):
            with redirect_stdout(said), redirect_stderr(io.StringIO()):
                shown.append(run_cell(text, names))
        self.assertEqual(len(shown[0]), 2)
        for value in shown[1:3] + shown[4:5]:
            self.assertIn("<", value._repr_html_())
        self.assertIn("peak", said.getvalue())
        self.assertLessEqual(names["plan"].best.needed_bytes, 8 << 30)
        self.assertEqual(shown[-1], "strategy.py")
        self.assertTrue(os.path.isfile("strategy.py"))


if __name__ == "__main__":
    unittest.main()
