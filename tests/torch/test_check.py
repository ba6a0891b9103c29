"""Written code run by the real FSDP2 or DDP: equal to what was predicted, for built-in and traced models; what
differs is found and named; mistakes are one line. And two random mixes."""

import io
import json
import os
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import tessera
from tessera import check, program
from tessera.errors import Refused

HERE = os.path.dirname(os.path.abspath(__file__))
LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 128, "intermediate_size": 192,
         "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 500,
         "max_position_embeddings": 256, "tie_word_embeddings": False}
BUILT_IN = {"plain": {}, "full": {"checkpoint": "full", "reshard_after_forward": 2, "backward_prefetch": 1},
            "hsdp": {"mesh": {"replicate": 2, "shard": 4}, "accumulation": {"steps": 2, "mode": "no_all_reduce"},
                     "optimizer": {"variant": "loop"}},
            "amsgrad": {"optimizer": {"amsgrad": True, "maximize": True}},
            "nesterov": {"optimizer": {"name": "sgd", "nesterov": True, "variant": "foreach"}},
            "offload": {"offload": "cpu_pinned", "clip": False, "wrap": "block_embed_head"}, "ddp": {"api": "ddp"},
            "unused": {"api": "ddp", "ddp": {"find_unused": True}, "accumulation": {"steps": 2, "mode": "no_reduce"},
                       "precision": {"param": "none", "reduce": "none"}},
            "static": {"api": "ddp", "ddp": {"static_graph": True}, "accumulation": {"steps": 2}, "precision": {"param": "none", "reduce": "none"}},
            "older": {"api": "fsdp1", "clip": True, "accumulation": {"steps": 2, "mode": "no_reduce"}},
            "ends": {"api": "fsdp1", "wrap": "block_embed_head", "fsdp1": {"forward_prefetch": True}}, "compiled": {"dialect": "compile"}, "moments": {"optimizer": {"state": "bf16"}}}
TRACED = {"plain": {"wrap": "block"}, "copies": {"wrap": "block", "api": "replicate", "optimizer": {"variant": "loop"}},
          # Several modules in one call: FSDP2 hooks the first one's inputs and the last one's outputs.
          "pairs": {"wrap": [{"modules": ["blocks.0", "blocks.1"], "group": True},
                             {"modules": ["blocks.2", "blocks.3"], "group": True}, {"modules": [""]}]},
          "ends": {"wrap": [{"modules": ["blocks.*"]}, {"modules": ["first", "head"], "group": True}, {"modules": [""]}]}}
DDP = {"plain": {}, "view": {"ddp": {"gradient_as_bucket_view": True}}, "cap": {"ddp": {"bucket_cap_mb": 0.02}}, "sums": {"precision": {"reduce": "f32"}},
       "synced": {"accumulation": {"steps": 2}}, "clipped": {"accumulation": {"steps": 3, "mode": "no_reduce"}, "clip": True},
       "nesterov": {"optimizer": {"name": "sgd", "nesterov": True, "variant": "foreach"}}}
FSDP1 = {"plain": {}, "kept": {"reshard_after_forward": False}, "hybrid": {"mesh": {"replicate": 2, "shard": 4}},
         "whole": {"mesh": {"replicate": 8, "shard": 1}, "clip": True}, "root": {"wrap": "root"},
         "ahead": {"fsdp1": {"forward_prefetch": True, "backward_prefetch": "post"}}, "free": {"fsdp1": {"limit_all_gathers": False}},
         "summed": {"accumulation": {"steps": 3, "mode": "no_reduce"}, "clip": True}}
# Options with which DDP clones the model's outputs: the trace is made with the option.
CLONES = {"find_unused": {"plain": {}, "synced": {"accumulation": {"steps": 2}}, "clipped": {"accumulation": {"steps": 2, "mode": "no_reduce"}, "clip": True}},
          "static_graph": {"plain": {}, "synced": {"accumulation": {"steps": 3}}}}
# DDP's own mixed precision, of a model traced in bf16.
MIXED = {"own": {"precision": {"param": "bf16", "reduce": "f32"}}, "halves": {"precision": {"param": "bf16", "reduce": "bf16"}},
         "small": {"ddp": {"bucket_cap_mb": 0.02}}, "clipped": {"clip": True, "ddp": {"bucket_cap_mb": 0.05}},
         "each": {"accumulation": {"steps": 2, "mode": "reduce_each"}}}


class Check(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.write("config.json", LLAMA)
        cls.write("built-in.yaml", {"stack": "torchtitan-2026", "cluster": "dgx-h100-1", "wrap": "block", "batch": 2,
                                    "model": {"name": "config.json", "names": "hf"}, "seq": 64,
                                    "reshard_after_forward": None, "strategies": BUILT_IN})
        cls.emit("built-in")

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    @classmethod
    def path(cls, *names):
        return os.path.join(cls.folder.name, *names)

    @classmethod
    def write(cls, name, value):
        with open(cls.path(name), "w", encoding="utf-8") as f:
            json.dump(value, f)   # JSON is YAML

    @classmethod
    def emit(cls, name, *only):
        program.run(["compare", cls.path(name + ".yaml"), "--no-traces", "--emit", "torch", cls.path(name),
                     *[word for strategy in only for word in ("--only", strategy)]])

    def run_check(self, *arguments):
        return subprocess.run([sys.executable, "-m", "tessera", "check", *arguments], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)

    def built_in(self, strategy, *options, file=None):
        return self.run_check(file or self.path("built-in", strategy + ".py"), os.path.join(HERE, "llama.py:tiny"),
                              "--experiment", self.path("built-in.yaml"), *options)

    def test_written_strategies_take_what_was_predicted(self):
        for strategy in BUILT_IN.keys() - {"compiled", "moments"}:
            with self.subTest(strategy):
                done = self.built_in(strategy)
                self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
                self.assertIn("iterations 0 and 1 are those predicted", done.stdout)

    def test_other_ranks_and_worlds(self):
        done = self.built_in("plain", "--rank", "7")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("rank 7 of 8", done.stdout)
        done = self.built_in("plain", "--world", "6", "--rank", "5")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("rank 5 of 6", done.stdout)

    def test_code_that_does_something_else_is_found(self):
        with open(self.path("built-in", "plain.py"), encoding="utf-8") as f:
            text = f.read()
        changed = text.replace("    shard(model)\n", "    shard(model, reshard_after_forward=True)\n")
        self.assertNotEqual(changed, text)
        with open(self.path("built-in", "changed.py"), "w", encoding="utf-8") as f:
            f.write(changed)
        done = self.built_in("", file=self.path("built-in", "changed.py"))
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertRegex(done.stdout, r"figures differ from those predicted\n  iteration 0, forward: end allocated: \d+, predicted \d+ \([+-]\d+\)")

    def test_a_traced_model(self):
        model = os.path.join(HERE, "models.py") + ":deep"
        made = subprocess.run([sys.executable, "-m", "tessera", "trace", model, "-o", self.path("deep.trace")],
                              stdout=subprocess.DEVNULL, check=False)
        self.assertEqual(made.returncode, 0)
        self.write("traced.yaml", {"model": {"trace": "deep.trace"}, "cluster": "dgx-h100-1", "strategies": TRACED})
        self.emit("traced")
        for strategy in TRACED:
            with self.subTest(strategy):
                done = self.run_check(self.path("traced", strategy + ".py"), model, "--experiment", self.path("traced.yaml"))
                self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)

    def test_modules_of_one_call_as_they_were_traced(self):
        """Where hooks change the run, a call of several modules is traced as one."""
        for name, wrap, options in (("pairs", ["first+blocks.0", "blocks.1+blocks.2"], {}),
                                    ("attends", ["blocks.0+pool", "blocks.1"], {"output": "bf16"}),
                                    ("shared", ["blocks.0+blocks.3"], {"checkpoint": "none"})):
            model = os.path.join(HERE, "models.py") + ":" + name
            tessera.trace(model, wrap=wrap, **options).save(self.path("calls.trace"))
            entries = [{"modules": call.split("+"), "group": "+" in call} for call in wrap] + [{"modules": [""]}]
            apart = [{"modules": [module for call in wrap for module in call.split("+")]}, {"modules": [""]}]
            self.write("calls.yaml", {"model": {"trace": "calls.trace"}, "cluster": "dgx-h100-1", "wrap": entries,
                                      "precision": {"output": options.get("output", "none")},
                                      "strategies": {"once": {}, "twice": {"accumulation": {"steps": 2}}}})
            self.emit("calls")
            for strategy in ("once", "twice"):
                with self.subTest(f"{name} {strategy}"):
                    _, found = check.check(self.path("calls", strategy + ".py"), model, named=self.path("calls.yaml"))
                    self.assertEqual(found, [])
            with self.subTest(name), self.assertRaisesRegex(Refused, "was traced in one call with others than it has now"):
                program.run(["compare", self.path("calls.yaml"), "--no-traces", "--only", "once", "--set", "wrap=" + json.dumps(apart)])
        with self.assertRaisesRegex(Refused, "--wrap first\\+blocks.0.up: modules of one call are recomputed apart"):
            tessera.trace(os.path.join(HERE, "models.py") + ":deep", wrap=["first+blocks.0.up"], checkpoint="full")

    def test_fsdp1(self):
        """Also on ranks whose shards have other original parameters, and with one shard rank."""
        model = os.path.join(HERE, "models.py") + ":deep"
        for dtype, checkpoint, strategies in (("none", "none", FSDP1), ("bf16", "none", FSDP1), ("bf16", "full", {"plain": {}})):
            tessera.trace(model, dtype=dtype, checkpoint=checkpoint).save(self.path("fsdp1.trace"))
            self.write("fsdp1.yaml", {"model": {"trace": "fsdp1.trace"}, "cluster": "dgx-h100-1", "api": "fsdp1", "wrap": "block",
                                      "checkpoint": checkpoint, "precision": {"param": dtype, "reduce": "f32" if dtype == "bf16" else dtype},
                                      "strategies": strategies})
            self.emit("fsdp1")
            for strategy in strategies:
                for world, rank in ((None, 0), (5, 3), (1, 0)) if strategy == "plain" else ((None, 0),):
                    with self.subTest(f"{dtype} {checkpoint} {strategy} {world}"):
                        _, found = check.check(self.path("fsdp1", strategy + ".py"), model, world=world, rank=rank, named=self.path("fsdp1.yaml"))
                        self.assertEqual(found, [])

    def test_ddp(self):
        model = os.path.join(HERE, "models.py") + ":deep"
        for dtype, reduce, strategies in (("none", "none", DDP), ("bf16", "f32", MIXED)):
            tessera.trace(model, dtype=dtype).save(self.path("ddp.trace"))
            self.write("ddp.yaml", {"model": {"trace": "ddp.trace"}, "cluster": "dgx-h100-1", "api": "ddp",
                                    "precision": {"param": dtype, "reduce": reduce}, "strategies": strategies})
            self.emit("ddp")
            for strategy in strategies:
                with self.subTest(strategy):
                    done = self.run_check(self.path("ddp", strategy + ".py"), model, "--experiment", self.path("ddp.yaml"))
                    self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
                    self.assertIn("iterations 0 and 1 are those predicted", done.stdout)

    def test_ddp_clones_outputs_and_broadcasts(self):
        for name in ("deep", "outputs"):
            model = os.path.join(HERE, "models.py") + ":" + name
            for option, strategies in {"none": {"plain": {}, "unsynced": {"accumulation": {"steps": 3, "mode": "no_reduce"}}}, **CLONES}.items():
                tessera.trace(model, dtype="autocast-bf16", wrap=["root"], ddp=option).save(self.path("clones.trace"))
                ddp = {option: True} if option != "none" else {}
                self.write("clones.yaml", {"model": {"trace": "clones.trace"}, "cluster": "dgx-h100-1", "api": "ddp", "ddp": ddp,
                                           "precision": {"param": "none", "reduce": "none"}, "strategies": strategies})
                self.emit("clones")
                for strategy in strategies:
                    with self.subTest(f"{name} {option} {strategy}"):
                        _, found = check.check(self.path("clones", strategy + ".py"), model, named=self.path("clones.yaml"))
                        self.assertEqual(found, [])
        for ddp, asked in (({}, ""), ({"find_unused": True}, "--ddp find_unused ")):   # beside a trace of static_graph
            self.write("clones.yaml", {"model": {"trace": "clones.trace"}, "cluster": "dgx-h100-1", "api": "ddp", "ddp": ddp,
                                       "precision": {"param": "none", "reduce": "none"}, "strategies": {"s": {}}})
            with self.assertRaisesRegex(Refused, f"was traced with static_graph; allowed: that, or another trace .*--dtype autocast-bf16 {asked}-o"):
                program.run(["compare", self.path("clones.yaml"), "--no-traces"])
        self.write("clones.yaml", {"model": {"trace": "clones.trace"}, "cluster": "dgx-h100-1", "api": "ddp", "ddp": {"static_graph": True},
                                   "precision": {"param": "none", "reduce": "none"}, "strategies": {"s": {"accumulation": {"steps": 2, "mode": "no_reduce"}}}})
        with self.assertRaisesRegex(Refused, r"accumulation.mode: found no_reduce, under which .* \(ddp.static_graph\); allowed: reduce_each"):
            program.run(["compare", self.path("clones.yaml"), "--no-traces"])
        with self.assertRaisesRegex(Refused, "--wrap: found blocks.* beside --ddp find_unused; allowed: root"):
            tessera.trace(os.path.join(HERE, "models.py") + ":deep", wrap=["blocks.*"], ddp="find_unused")
        with self.assertRaisesRegex(Refused, "ddp: 'both'"):
            tessera.trace(os.path.join(HERE, "models.py") + ":deep", ddp="both")

    def test_what_is_kept_from_step_to_step_and_read_in_lists(self):
        for name, lists, wrap in (("keeps", 3, "block"), ("counts", 2, "root")):
            model = os.path.join(HERE, "models.py") + ":" + name
            trace = tessera.trace(model)
            self.assertEqual(len(trace.content["variants"][0]["iterations"]), lists)
            trace.save(self.path("kept.trace"))
            self.write("kept.yaml", {"model": {"trace": "kept.trace"}, "cluster": "dgx-h100-1", "wrap": wrap,
                                     "strategies": {"plain": {}, "twice": {"accumulation": {"steps": 2}}, "thrice": {"accumulation": {"steps": 3}}}})
            self.emit("kept")
            for strategy in ("plain", "twice", "thrice"):
                with self.subTest(f"{name} {strategy}"):
                    _, found = check.check(self.path("kept", strategy + ".py"), model, named=self.path("kept.yaml"))
                    self.assertEqual(found, [])
        with self.assertRaisesRegex(Refused, "torch.tensor of torch.bfloat16 .* give it with --readback 'the model:torch.tensor=VALUE'"):
            tessera.trace(os.path.join(HERE, "models.py") + ":counts_data", readbacks={"the model:aten._local_scalar_dense.default": 3})

    def test_a_trace_whose_hooks_changed_the_run(self):
        """A strategy that the trace cannot say is refused with the command that can, whose trace is exact."""
        model = os.path.join(HERE, "models.py") + ":pairs"
        self.write("pairs.yaml", {"model": {"trace": "pairs.trace"}, "cluster": "dgx-h100-1", "wrap": "block",
                                  "strategies": {"blocks": {}, "root": {"wrap": "root"}}})
        for options, works, refused in (([], "blocks", "root"), (["--wrap", "root"], "root", "blocks")):
            with self.subTest(works):
                made = subprocess.run([sys.executable, "-m", "tessera", "trace", model, "-o", self.path("pairs.trace"),
                                       *options], stdout=subprocess.DEVNULL, check=False)
                self.assertEqual(made.returncode, 0)
                self.emit("pairs", works)
                done = self.run_check(self.path("pairs", works + ".py"), model, "--experiment", self.path("pairs.yaml"))
                self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
                with self.assertRaises(Refused) as caught:
                    self.emit("pairs", refused)
                self.assertIn(" --wrap root" if refused == "root" else "had no hooks", str(caught.exception))

    def test_blocks_in_several_places(self):
        model = os.path.join(HERE, "models.py") + ":shared"
        made = subprocess.run([sys.executable, "-m", "tessera", "trace", model, "-o", self.path("shared.trace"),
                               "--checkpoint", "none,every2"], stdout=subprocess.DEVNULL, check=False)
        self.assertEqual(made.returncode, 0)
        self.write("shared.yaml", {"model": {"trace": "shared.trace"}, "cluster": "dgx-h100-1", "wrap": "block",
                                   "strategies": {"plain": {}, "recomputed": {"checkpoint": 2}}})
        self.emit("shared")
        for strategy in ("plain", "recomputed"):
            with self.subTest(strategy):
                done = self.run_check(self.path("shared", strategy + ".py"), model, "--experiment", self.path("shared.yaml"))
                self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)

    def test_a_scenario_as_a_person_traces_it(self):
        """With a hook at `mid` the U-Net allocates otherwise, so the trace has none, and is made again with what is
        wrapped."""
        golden = os.path.join(HERE, "..", "golden-bridge")
        for name, again in (("resnet-tiny-6ranks-rank5", False), ("unet-tiny-8ranks-fp32", True)):
            with self.subTest(name):
                scenario, result = os.path.join(golden, name + ".json"), self.path(name + ".json")
                done = subprocess.run([sys.executable, "-m", "tessera", "memory", scenario, "--from-trace", "-o", result],
                                      stderr=subprocess.PIPE, text=True, check=False)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual("'mid' is wrapped" in done.stderr, again)
                with open(scenario, encoding="utf-8") as f, open(result, encoding="utf-8") as g:
                    recorded, played = json.load(f)["allocator"], json.load(g)["allocator"]
                self.assertGreater(len(played["phases"]), 10)
                self.assertEqual(played["phases"], recorded["phases"][:len(played["phases"])])

    def test_the_best_of_a_plan_is_checked_when_it_is_written(self):
        here = os.getcwd()
        os.chdir(HERE)
        try:
            with mock.patch.dict(os.environ, XDG_CACHE_HOME=self.path("cache")):
                rows = tessera.trace("models.py:deep").plan("dgx-h100-1", space={"wrap": ["block", "root"]})
            for i, row in enumerate(rows):
                with self.subTest(row.settings), mock.patch.object(check, "check", wraps=check.check) as ran:
                    self.assertTrue(os.path.isfile(row.write(self.path(f"row{i}.py"))))
                    self.assertEqual(ran.call_count, 1)
        finally:
            os.chdir(here)

    def test_what_cannot_be_checked_is_written_with_a_note(self):
        here = os.getcwd()
        os.chdir(HERE)
        try:
            with mock.patch.dict(os.environ, XDG_CACHE_HOME=self.path("cache")):
                row, = tessera.trace("models.py:deep").compare("dgx-h100-1", {"moments": {"optimizer": {"state": "bf16"}}})
            with mock.patch.object(sys, "stderr", io.StringIO()) as said:
                self.assertTrue(os.path.isfile(row.write(self.path("moments.py"))))
            self.assertRegex(said.getvalue(), r"note: .*moments\.py: written, not checked: strategy moments: optimizer.state: bf16 cannot be checked")
            with self.assertRaisesRegex(Refused, "bf16 cannot be checked"):
                row.write(self.path("moments.py"), check=True)
        finally:
            os.chdir(here)

    def test_mistakes_are_one_line(self):
        with open(self.path("own.py"), "w", encoding="utf-8") as f:
            f.write("# my own\n")
        strategy = self.path("built-in", "plain.py")
        for arguments, said in (((self.path("own.py"), "a.py:b"), "does not say which strategy"),
                                ((self.path("no.py"), "a.py:b"), "No such file"),
                                ((strategy, "a.py:b"), "built-in.yaml, which is not here"),
                                ((strategy, "a.py:b", "--experiment", self.path("built-in.yaml")), "a.py: no such Python file"),
                                ((self.path("built-in", "compiled.py"), "a.py:b", "--experiment", self.path("built-in.yaml")),
                                 "dialect: compile cannot be checked (the stand-in device runs no compiled kernels)"),
                                ((self.path("built-in", "moments.py"), "a.py:b", "--experiment", self.path("built-in.yaml")),
                                 "optimizer.state: bf16 cannot be checked"),
                                ((strategy, "a.py:b", "--experiment", self.path("built-in.yaml"), "--rank", "8"), "--rank: found 8")):
            with self.subTest(said):
                done = self.run_check(*arguments)
                self.assertEqual((done.returncode, done.stdout), (2, ""))
                self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
                self.assertIn(said, done.stderr)

    def test_what_a_plan_changed_is_read_from_the_comment(self):
        self.assertEqual(check.changes("wrap=[{modules: [a, b]}], batch=2"), ["wrap=[{modules: [a, b]}]", "batch=2"])


class Mixes(unittest.TestCase):
    def test_random_strategies(self):
        done = subprocess.run([sys.executable, os.path.join(HERE, "mixes.py"), "--seed", "11", "--traces", "2",
                               "--strategies", "2", "--models", "gpt,custom_fn"], text=True, stdout=subprocess.PIPE,
                              env={**os.environ, "TESSERA": program.find()}, check=False)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertEqual(done.stdout, "4 equal\n")


if __name__ == "__main__":
    unittest.main()
