"""What a trace holds, and that equal models give equal bytes."""

import gzip
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import unittest

import tessera
from decode import played
from tessera import standin

HERE = os.path.dirname(os.path.abspath(__file__))
MODELS = os.path.join(HERE, "models.py")


def trace(name, **options):
    return tessera.trace(f"{MODELS}:{name}", **options)


def events(trace, variant=0, key="iterations"):
    content = trace.content
    return [e for _, _, _, found in played(content, content["variants"][variant][key]) for e in found]


class Files(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.deep = trace("deep")

    def test_equal_models_give_equal_bytes(self):
        self.assertEqual(self.deep.packed, trace("deep").packed)

    def test_hash_is_of_everything_but_made_by(self):
        content = dict(self.deep.content)
        said = content.pop("sha256")
        content.pop("made_by")
        text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        self.assertEqual(hashlib.sha256(text.encode()).hexdigest(), said)

    def test_distinct_segments_do_not_grow_with_depth(self):
        deeper = trace("deeper").content
        self.assertEqual(deeper["model"]["blocks"], [m for m, row in enumerate(deeper["modules"])
                                                     if row[1] == "Block"])
        # The frees of all gradients at once are the only segments that know the depth.
        self.assertLessEqual(len(deeper["segments"]), len(self.deep.content["segments"]) + 2)

    def test_every_free_has_its_allocation_and_gradients_their_storage(self):
        live, gradients = set(), 0
        for e in events(self.deep):
            if e[0] == "alloc":
                live.add(e[1])
            elif e[0] == "free":
                live.remove(e[1])
            elif e[0] == "gradient":
                self.assertIn(e[2], live)
                gradients += 1
        self.assertEqual(gradients, 2 * len(self.deep.content["params"]))

    def test_markers_are_those_of_fsdp2(self):
        first = self.deep.content["variants"][0]["iterations"][0]
        block = self.deep.content["model"]["blocks"][0]
        self.assertEqual([s[0] for s in first if s[1] == block],
                         ["pre_forward", "post_forward", "pre_backward", "post_backward"])
        self.assertEqual([s[0] for s in first if s[1] < 0],
                         ["inputs", "zero_grad", "forward", "loss", "backward", "final", "optimizer", "end"])

    def test_operators_have_flops_and_read_parameters(self):
        content = self.deep.content
        linear = {p for e in events(self.deep) if e[0] == "call"
                  and content["ops"][e[1]][0] == "aten.addmm.default" for p in e[2]}
        self.assertEqual(linear, set(range(len(content["params"]))))
        up = [op for op in content["ops"]
              if op[0] == "aten.addmm.default" and op[1][1:] == [[8, 64], [64, 128]]]
        self.assertEqual([op[3] for op in up], [2 * 8 * 64 * 128])

    def test_a_saved_trace_is_read_again(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model.trace")
            self.deep.save(path)
            self.assertEqual(tessera.load(path).hash, self.deep.hash)


class Variants(unittest.TestCase):
    def test_batches_and_checkpoints_are_variants_of_one_file(self):
        found = trace("ok", batch=[8, 16], checkpoint=["none", "full", "every2", "selective"])
        self.assertEqual(found.variants, [f"b{b}-{c}" for b in (8, 16)
                                          for c in ("none", "full", "every2", "selective")])
        blocks = found.content["model"]["blocks"]
        self.assertEqual([v["conditions"]["checkpointed"] for v in found.content["variants"][:4]],
                         [[], blocks, blocks[::2], blocks])
        again = [sum("a" in e for step in v["iterations"][0] for e in found.content["segments"][step[3]]
                     if e[0] == 0) for v in found.content["variants"][:4]]
        self.assertEqual(again[0], 0)   # nothing is computed again
        self.assertGreater(again[1], again[2])
        self.assertGreater(again[2], 0)

    def conditions(self, made):
        names = [m[0] for m in made.content["modules"]]
        found = made.content["variants"][0]["conditions"]
        return [[names[i] for i in found.get(key, [])] for key in ("hooked", "needs")]

    def test_hooks_that_change_the_run_are_taken_away_beside_the_blocks(self):
        """nn.MultiheadAttention asks whether key and value are one tensor; an identity node makes two of it."""
        hooked, needs = self.conditions(trace("attends"))
        self.assertEqual((hooked, needs), (["", "blocks.0", "blocks.1", "blocks.2"], []))
        hooked, needs = self.conditions(trace("attends", wrap=["blocks.*", "pool"]))
        self.assertEqual((hooked, needs), (["", "blocks.0", "blocks.1", "blocks.2", "pool"],
                                           ["blocks.0", "blocks.1", "blocks.2", "pool"]))

    def test_blocks_whose_hooks_change_the_run_must_be_wrapped(self):
        hooked, needs = self.conditions(trace("pairs"))
        self.assertEqual(hooked, ["", "first", "blocks.0", "blocks.1", "blocks.2"])
        self.assertEqual(needs, ["blocks.0", "blocks.1", "blocks.2"])
        hooked, needs = self.conditions(trace("pairs", wrap="root"))
        self.assertEqual((hooked, needs), ([""], []))
        hooked, needs = self.conditions(trace("deep"))
        self.assertEqual((hooked[0], len(hooked), needs), ("", 9, []))

    def test_the_dtype_of_a_shard_is_that_of_a_wrapped_module_that_is_not_called(self):
        _, needs = self.conditions(trace("asks_dtype"))
        self.assertEqual(needs, ["blocks.0", "blocks.1", "blocks.2"])
        _, needs = self.conditions(trace("asks_dtype", wrap="root"))
        self.assertEqual(needs, [])
        _, needs = self.conditions(trace("asks_dtype", dtype="fp32"))
        self.assertEqual(needs, [])
        _, needs = self.conditions(trace("asks_dtype_in_backward"))   # where it is not a shard
        self.assertEqual(needs, [])

    def test_a_wrap_that_matches_nothing(self):
        with self.assertRaisesRegex(tessera.Refused, "no module is called 'no.such'"):
            trace("deep", wrap=["blocks.*", "no.such"])

    def test_autocast_and_fp32_change_the_conditions(self):
        found = trace("ok", dtype="autocast-bf16").content["variants"][0]["conditions"]
        self.assertEqual((found["param_dtype"], found["autocast"]), (None, "bfloat16"))


class Batches(unittest.TestCase):
    def test_a_tuple_is_passed_by_place_as_far_as_forward_takes_it(self):
        self.assertEqual([i[1:] for i in trace("pair").content["variants"][0]["inputs"]],
                         [[[8, 64], "float32"], [[8], "int64"]])

    def test_a_label_is_not_given_to_an_argument_with_a_default(self):
        def products(name):
            return [op for op in trace(name).content["ops"] if op[0].startswith("aten.mul")]
        self.assertEqual(products("pair_beside_mask"), [])
        self.assertNotEqual(products("masked"), [])


class Blocks(unittest.TestCase):
    def test_lists_inside_lists_are_gone_through(self):
        found = trace("stages").content
        self.assertEqual([found["modules"][i][0] for i in found["model"]["blocks"]],
                         ["stages.0.0", "stages.0.1", "stages.1.0", "stages.1.1"])

    def test_members_without_a_forward_give_way_to_their_own(self):
        found = trace("levels").content
        self.assertEqual([found["modules"][i][0] for i in found["model"]["blocks"]],
                         [f"levels.{i}.block.{k}" for i in range(2) for k in range(2)])


class Dtypes(unittest.TestCase):
    def test_weights_keep_the_dtype_that_the_function_made(self):
        for dtype, found in (("bf16", "bfloat16"), ("none", None)):
            traced = trace("low_precision" if dtype == "bf16" else "ok", dtype=dtype).content
            self.assertEqual(traced["variants"][0]["conditions"]["param_dtype"], found)
            self.assertEqual({p[2] for p in traced["params"]}, {"bfloat16" if found else "float32"})


class Libraries(unittest.TestCase):
    def test_triangular_systems_allocate_their_result_and_no_scratch(self):
        """As PyTorch's host code asks: the result, and in a batch two arrays of addresses."""
        for name, made in (("triangular", [2 * 64 * 64 * 4]), ("triangular_batched", [16 * 64 * 64 * 4, 128, 128]),
                           ("triangular_large", [16 * 600 * 64 * 4, 128, 128])):
            found = trace(name).content
            op = [o[0] for o in found["ops"]].index("aten.linalg_solve_triangular.default")
            forward = next(s for s in found["segments"] if [2, op] in s)
            calls = [i for i, e in enumerate(forward) if e[0] == 2]
            at = calls.index(forward.index([2, op]))
            with self.subTest(name):
                self.assertEqual([e[1] for e in forward[calls[at - 1]:calls[at]] if e[0] == 0], made)

    def test_sampling_on_a_grid_is_traced(self):
        self.assertIn("aten.cudnn_grid_sampler.default", [o[0] for o in trace("grid").content["ops"]])


class Readbacks(unittest.TestCase):
    def test_constants_are_answered_with_their_values(self):
        conditions = trace("asks_positions").content["variants"][0]["conditions"]
        self.assertEqual(conditions["readbacks"], [[0, "aten._local_scalar_dense.default", 1]])
        self.assertIsNone(conditions["routing"])

    def test_sizes_that_follow_from_the_batch_are_answered(self):
        """Row i of the batch is 0 to 7, again and again: what each operator reads of it in two iterations."""
        for name, read in (("filled", []), ("scattered", [64 * 2 * 8192]), ("repeated", [14, 1]), ("product", [4]),
                           ("unique", [1]), ("mask", [1])):
            with self.subTest(name):
                found = trace(name).content["variants"][0]["conditions"]["readbacks"]
                self.assertEqual(sorted({value for _, _, value in found}), sorted(read))

    def test_data_is_asked_for(self):
        with self.assertRaisesRegex(tessera.Refused, "^the model: aten._local_scalar_dense.default of "
                                    "torch.bool .* asks the device .* --readback"):
            trace("asks_data")
        sizes = []
        for value in (0, 1):
            given = trace("asks_data", readbacks={"the model:aten._local_scalar_dense.default": value})
            self.assertEqual([r[2] for r in given.content["variants"][0]["conditions"]["readbacks"]], [value])
            sizes.append(sum(e[0] == "alloc" for e in events(given)))
        self.assertGreater(sizes[1], sizes[0])

    def test_chance_on_the_host_is_refused_where_it_decides(self):
        for name in ("chance_of_python", "chance_of_numpy", "chance_of_torch"):
            with self.subTest(name), self.assertRaisesRegex(tessera.Refused, "^chooser: draws random numbers on the host"):
                trace(name)
        self.assertGreater(len(events(trace("no_chance"))), 0)

    def test_codes_of_a_codebook_are_spread_evenly(self):
        conditions = trace("levels").content["variants"][0]["conditions"]
        self.assertEqual([r[1] for r in conditions["readbacks"]], ["aten._to_copy.default"])
        self.assertEqual(conditions["routing"]["distribution"], "balanced")

    def test_routing_is_stated_and_no_expert_is_empty(self):
        tokens = {}
        for factor in (1.0, 2.0):
            found = trace("mixture", load_factor=factor).content
            conditions = found["variants"][0]["conditions"]
            self.assertEqual(conditions["routing"]["load_factor"], str(factor))
            tokens[factor] = [op[1][1][0] for op in found["ops"]
                              if op[0] == "aten.addmm.default" and op[1][2] == [64, 64]]
        self.assertIn(32, tokens[1.0])          # 64 tokens, 2 of 4 experts each
        self.assertIn(64, tokens[2.0])
        self.assertNotIn(0, tokens[1.0] + tokens[2.0])


class Shell(unittest.TestCase):
    def run_tessera(self, *arguments, **more):
        return subprocess.run([sys.executable, "-m", "tessera", *arguments], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **more})

    def test_a_mistake_is_one_line_and_status_2(self):
        done = self.run_tessera("trace", f"{MODELS}:nothing", "-o", "/dev/null")
        self.assertEqual(done.returncode, 2)
        self.assertRegex(done.stderr, r"^tessera: .*nothing.*\n$")

    def test_a_torch_without_cuda_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            os.makedirs(os.path.join(folder, "torch"))
            open(os.path.join(folder, "torch", "__init__.py"), "w").close()
            with open(os.path.join(folder, "torch", "version.py"), "w", encoding="utf-8") as f:
                f.write("__version__ = '2.11.0+cpu'\ncuda: Optional[str] = None\n")
            done = self.run_tessera("trace", f"{MODELS}:ok", "-o", "/dev/null",
                                    PYTHONPATH=os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")]))
        self.assertEqual(done.returncode, 2)
        self.assertIn("torch 2.11.0+cpu has no CUDA libraries", done.stderr)

    def test_symbols_of_this_torch_are_known(self):
        self.assertEqual(standin.check()[1], [])


class BuiltIn(unittest.TestCase):
    """A traced Llama is the built-in one: its time, its memory and its collectives."""

    STRATEGIES = {
        "fsdp": {}, "ddp": {"api": "ddp"}, "older": {"api": "fsdp1"}, "root": {"api": "fsdp1", "wrap": "root"},
        "kept": {"api": "fsdp1", "reshard_after_forward": False, "mesh": {"replicate": 2, "shard": 4}},
        "ahead": {"api": "fsdp1", "fsdp1": {"forward_prefetch": True, "backward_prefetch": "post"}},
        "summed": {"api": "fsdp1", "accumulation": {"steps": 3, "mode": "no_reduce"}, "clip": True},
        "again": {"api": "fsdp1", "checkpoint": "full"}, "whole": {"api": "fsdp1", "mesh": {"replicate": 8, "shard": 1}}}

    def rows(self, folder, name, model):
        path = os.path.join(folder, f"{name}.yaml")
        with open(path, "w", encoding="utf-8") as f:
            json.dump({"model": model, "cluster": "dgx-h100-1", "batch": 1, "seq": 4096, "strategies": self.STRATEGIES}, f)
        done = subprocess.run([os.environ["TESSERA"], "compare", path, "--format", "json", "--no-traces"], text=True,
                              stdout=subprocess.PIPE, check=True)
        return {row["strategy"]: row for row in json.loads(done.stdout)["rows"]}

    def test_the_same_model_by_both_ways(self):
        with tempfile.TemporaryDirectory() as folder:
            made = tessera.trace(f"{HERE}/llama.py:llama_8b_2_layers", batch=1, seq=4096, checkpoint=["none", "full"])
            made.save(os.path.join(folder, "llama.trace"))
            traced = self.rows(folder, "traced", {"trace": "llama.trace"})
            built_in = self.rows(folder, "built-in", {"name": "llama-3.1-8b", "layers": 2, "names": "hf"})
        for name in self.STRATEGIES:
            one, other = traced[name], built_in[name]
            with self.subTest(name):
                self.assertAlmostEqual(one["compute_s"] / other["compute_s"], 1.0, delta=0.01)
                for what in ("peak_allocated_bytes", "peak_reserved_bytes", "first_peak_reserved_bytes", "collectives"):
                    self.assertEqual(one[what], other[what], what)


class Golden(unittest.TestCase):
    """Traces that are kept for the C side's tests are what the tracer makes today."""

    def test_recorded_models_give_the_kept_traces(self):
        folder = os.path.join(HERE, "..", "golden-bridge")
        if not os.path.isdir(os.path.join(folder, "models")):
            self.skipTest("no tests/golden-bridge/models")
        for name in ("dlrm-tiny-4ranks-sgd", "lora-tiny-8ranks"):
            with self.subTest(name), \
                    open(os.path.join(folder, name + ".trace"), "rb") as f:
                kept = json.loads(gzip.decompress(f.read()))
                made = tessera.api.start.child({"scenario": os.path.join(folder, name + ".json")})
                self.assertEqual(json.loads(gzip.decompress(made))["sha256"], kept["sha256"])


if __name__ == "__main__":
    unittest.main()
