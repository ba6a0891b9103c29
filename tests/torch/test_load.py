"""tessera.load: whatever a file holds, a trace or one TraceError of one line. Torch is not needed."""

import gzip
import hashlib
import json
import os
import shlex
import subprocess
import tempfile
import time
import unittest
from unittest import mock

import tessera
from tessera import disk, program

GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden-bridge")
SMALL = os.path.join(GOLDEN, "front-4ranks-reshard2.trace")
STEP = 1 << 20


def bomb(path, pieces):
    """Spaces, a thousand times as many as the file's bytes, in members of gzip that follow each other."""
    member = gzip.compress(b" " * STEP)
    with open(path, "wb") as f:
        f.write(member * pieces)


class Load(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.path = os.path.join(cls.folder.name, "model.trace")
        with open(SMALL, "rb") as f:
            cls.packed = f.read()
        cls.hash = tessera.load(SMALL).hash

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def write(self, data):
        with open(self.path, "wb") as f:
            f.write(data)

    def refused(self, words=""):
        with self.assertRaises(tessera.TraceError) as caught:
            tessera.load(self.path)
        said = str(caught.exception)
        self.assertNotIn("\n", said)
        self.assertIn("model.trace", said)
        self.assertIn(words, said)

    def same_or_refused(self, data, what):
        """What a flip changed is found, or is nothing that the hash is of."""
        self.write(data)
        try:
            found = tessera.load(self.path)
        except tessera.TraceError as error:
            self.assertEqual(str(error).count("\n"), 0, what)
        else:
            self.assertEqual(found.hash, self.hash, what)

    def test_other_files(self):
        deep = b"[" * 100000 + b"]" * 100000
        for data, words in ((b"", "is no trace"), (b"[1,2]", "is no trace"), (b"model: gpt2\n", "is no trace"),
                            (gzip.compress(b"[1,2]"), "is no trace"), (gzip.compress(b"null"), ""),
                            (gzip.compress(b'{"tessera_trace": 2}'), "version 1"), (gzip.compress(deep), ""),
                            (gzip.compress(b'{"tessera_trace": 1, "variants": ' + deep + b"}"), ""),
                            (self.packed[:-9], "is damaged"), (b"\x1f\x8b", ""), (self.packed + b"more", ""),
                            (gzip.compress(b'{"a": 1' + b"0" * 5000 + b"}"), ""),
                            (gzip.compress(b'{"a": "\xff"}'), ""), (gzip.compress(b'{"a": NaN}'), "")):
            with self.subTest(data[:20]):
                self.write(data)
                self.refused(words)

    def test_what_is_no_file(self):
        for name in ("nowhere.trace", "."):
            with self.assertRaisesRegex(tessera.TraceError, "is no file"):
                tessera.load(os.path.join(self.folder.name, name))

    def test_bombs(self):
        for pieces in (100, 4200):   # more than 100 times its bytes; 4.1 GiB
            bomb(self.path, pieces)
            self.refused("more than 100 times" if pieces == 100 else "more than 64 MiB")

    def test_bytes_with_one_bit_flipped(self):
        """One bit of every fifth byte; the long form takes one of each."""
        for i in range(0, len(self.packed), 1 if os.environ.get("TSR_THOROUGH") else 5):
            data = bytearray(self.packed)
            data[i] ^= 1 << i % 8
            self.same_or_refused(bytes(data), f"bit {i % 8} of byte {i}")

    def test_flips_of_the_text(self):
        text = gzip.decompress(self.packed)
        for i in range(0, len(text), 13 if os.environ.get("TSR_THOROUGH") else 101):
            data = bytearray(text)
            data[i] ^= 1 << i % 7
            self.same_or_refused(gzip.compress(bytes(data), 1), f"byte {i} of the text")

    def test_another_number_is_found_by_the_hash(self):
        document = json.loads(gzip.decompress(self.packed))
        document["ops"][0][3] += 1
        self.write(gzip.compress(json.dumps(document).encode()))
        self.refused("sha256")

    def test_conditions_that_are_not_possible(self):
        """Calls of several modules and dtypes of outputs, with a hash that fits."""
        last = len(json.loads(gzip.decompress(self.packed))["modules"])
        for key, value, fits in (("groups", [[0, 1]], False), ("groups", [], False), ("groups", [[]], False), ("groups", [[-1]], False),
                                 ("groups", [[last]], False), ("groups", [["a"]], False), ("groups", {}, False), ("groups", 3, False),
                                 ("groups", [[2 ** 63]], False), ("groups", [[0], [0]], False), ("groups", [[0]], True),
                                 ("output_dtype", "int3", False), ("output_dtype", None, False), ("output_dtype", 1, False),
                                 ("output_dtype", "bfloat16", True)):
            document = json.loads(gzip.decompress(self.packed))
            for variant in document["variants"]:
                variant["conditions"][key] = value
            identity = {k: v for k, v in document.items() if k not in ("made_by", "sha256")}
            document["sha256"] = hashlib.sha256(json.dumps(identity, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
            self.write(gzip.compress(json.dumps(document).encode()))
            with self.subTest(f"{key}: {value}"):
                if fits:
                    self.assertEqual(tessera.load(self.path).hash, document["sha256"])
                else:
                    self.refused("integer" if value == [[2 ** 63]] else f"{key} of variants[0]")

    def test_commands_of_a_plan_run_when_pasted(self):
        with mock.patch.dict(os.environ, XDG_CACHE_HOME=self.folder.name):
            rows = tessera.load(SMALL).plan("dgx-h100-1", space={"optimizer.variant": ["foreach", "fused"]},
                                            strategy={"wrap": "root"})
        for row in rows:
            words = shlex.split(row.command)
            self.assertEqual(words[0], "tessera")
            done = subprocess.run([program.find(), *words[1:]], capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 0, row.command + "\n" + done.stderr)

    def test_the_cache_of_plans_is_bounded(self):
        root = os.path.join(self.folder.name, "cache", "tessera")
        ages = {"0" * 16: 40, "1" * 16: 3, "2" * 16: 2, "3" * 16: 1, "plans-of-products": 400}
        for name, days in ages.items():
            os.makedirs(os.path.join(root, name))
            with open(os.path.join(root, name, "model.trace"), "wb") as f:
                f.write(bytes(1000))
            os.utime(os.path.join(root, name), (time.time() - 86400 * days,) * 2)
        os.symlink(os.path.join(root, "plans-of-products"), os.path.join(root, "4" * 16))
        trace = tessera.load(SMALL)
        mine = os.path.join(root, trace.hash[:16])
        with mock.patch.dict(os.environ, XDG_CACHE_HOME=os.path.dirname(root)):
            trace.compare("dgx-h100-1", {"root": {"wrap": "root"}})
            self.assertEqual(sorted(os.listdir(root)), sorted([*list(ages)[1:], "4" * 16, os.path.basename(mine)]))
            self.assertEqual(os.stat(mine).st_mode & 0o077, 0)
            old, = (os.path.join(mine, name) for name in os.listdir(mine) if name.endswith(".yaml"))
            os.utime(old, (1, 1))
            with mock.patch.object(disk, "BYTES", disk.size(mine) + 2500):
                trace.compare("dgx-h100-1", {"other": {"wrap": "root"}})
        self.assertNotIn("1" * 16, os.listdir(root))
        self.assertIn("2" * 16, os.listdir(root))
        self.assertFalse(os.path.exists(old))
        self.assertTrue(os.path.isfile(os.path.join(root, "plans-of-products", "model.trace")))

    def test_a_row_is_written_explained_and_drawn(self):
        with mock.patch.dict(os.environ, XDG_CACHE_HOME=self.folder.name):
            rows = tessera.load(SMALL).plan("dgx-h100-1", space={"optimizer.variant": ["foreach", "fused"]},
                                            strategy={"wrap": "root"})
            other = tessera.load(SMALL).compare("dgx-h100-1", {"root": {"wrap": "root"}})
        out = os.path.join(self.folder.name, "strategy.py")
        for row, name in ((rows.best, "base"), (other.best, "root")):
            with self.subTest(name):
                self.assertEqual(row.write(out, check=False), out)
                with open(out, encoding="utf-8") as f:
                    written = f.read()
                self.assertIn(f"strategy {name} of ", written)
                self.assertIn("def apply(model, mesh):", written)
                self.assertIn("peak", row.why())
                self.assertEqual(row.memory()["strategy"], name)
                page = row.report(os.path.join(self.folder.name, "report-" + name))
                self.assertTrue(os.path.isfile(page))
                self.assertIn("root" if name == "root" else "optimizer.variant", row._repr_html_())
        self.assertEqual(rows._repr_html_().count("<tr>"), 1 + len(rows))
        rows.best.write(out, check=False)
        with open(out, encoding="utf-8") as f:
            self.assertIn(" with optimizer.variant=", " ".join(x.strip("# ") for x in f.read().splitlines()[:5]))


if __name__ == "__main__":
    unittest.main()
