"""Configurations of Accelerate and DeepSpeed: what they are here, that code written from them has the memory that was predicted, and
that Accelerate itself, where it is installed, makes the same of a model. What is not known is refused."""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import unittest

import tessera
from tessera import check, program
from tessera.errors import Refused

MODEL = '''
import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    _no_split_modules = ["Block"]

    def __init__(self):
        super().__init__()
        self.embed, self.layers = nn.Embedding(900, 64), nn.ModuleList(Block(64) for _ in range(3))
        self.norm, self.head = nn.LayerNorm(64), nn.Linear(64, 900, bias=False)

    def get_input_embeddings(self):
        return self.embed

    def get_output_embeddings(self):
        return self.head

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def make(batch=2, seq=48):
    ids = torch.empty(batch, seq, dtype=torch.int64)
    return Net(), ids, lambda out, ids: F.cross_entropy(out.flatten(0, 1).float(), ids.flatten())
'''
FSDP = {"compute_environment": "LOCAL_MACHINE", "distributed_type": "FSDP", "downcast_bf16": "no", "machine_rank": 0, "mixed_precision": "bf16",
        "num_machines": 1, "num_processes": 8, "tpu_env": [], "use_cpu": False}
SECOND = {"fsdp_version": 2, "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "fsdp_transformer_layer_cls_to_wrap": "Block",
          "fsdp_reshard_after_forward": True, "fsdp_offload_params": False, "fsdp_cpu_ram_efficient_loading": False,
          "fsdp_activation_checkpointing": False, "fsdp_state_dict_type": "SHARDED_STATE_DICT"}
FIRST = {"fsdp_version": 1, "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "fsdp_sharding_strategy": "SHARD_GRAD_OP",
         "fsdp_backward_prefetch": "BACKWARD_PRE", "fsdp_forward_prefetch": True, "fsdp_use_orig_params": True}
ZERO = {"bf16": {"enabled": True}, "zero_optimization": {"stage": 3, "overlap_comm": True}, "train_batch_size": 64,
        "gradient_accumulation_steps": 2, "gradient_clipping": 1.0, "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}}
# Accelerate 1.15's own preparation of a model in the place of written code.
ITS_OWN = '''# train on 8 GPUs of dgx-h100-1: strategy train of config.tessera.yaml, written by
#   tessera 0.1.0.
import os
from types import SimpleNamespace
from torch.distributed.device_mesh import init_device_mesh


def build_mesh(device="cuda"):
    return init_device_mesh(device, (8,), mesh_dim_names=("shard",))


def apply(model, mesh):
    os.environ.update(%r)
    from accelerate.utils import FullyShardedDataParallelPlugin
    from accelerate.utils.fsdp_utils import fsdp2_prepare_model
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2)
    plugin.set_mixed_precision("bf16")
    return fsdp2_prepare_model(SimpleNamespace(
        state=SimpleNamespace(fsdp_plugin=plugin), torch_device_mesh=mesh, mixed_precision="bf16", is_main_process=False, device="cuda",
        parallelism_config=SimpleNamespace(fsdp_dim_names=["shard"])), model)
'''
ITS_FORWARD = '''
from types import MethodType

import torch
from accelerate.utils.operations import convert_outputs_to_fp32
from train import make as made


def make(batch=2, seq=48):
    model, data, loss = made(batch, seq)
    model.forward = MethodType(torch.autocast("cuda", torch.bfloat16)(model.forward.__func__), model)
    model.forward = MethodType(convert_outputs_to_fp32(model.forward.__func__), model)
    return model, data, loss
'''


def changed(table, **keys):
    return {key: value for key, value in {**table, **keys}.items() if value is not None}


class Folder(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.here = os.getcwd()
        os.chdir(self.temporary.name)
        self.write("train.py", MODEL)

    def tearDown(self):
        os.chdir(self.here)
        self.temporary.cleanup()

    @staticmethod
    def write(name, content):
        with open(name, "w", encoding="utf-8") as f:
            f.write(content if isinstance(content, str) else json.dumps(content))   # JSON is YAML
        return name

    def equal(self, config, target):
        """Saves it, writes its code, and checks that."""
        config.save("config.tessera.yaml")
        program.run(["compare", "config.tessera.yaml", "--no-traces", "--emit", "torch", "code"])
        predicted, found = check.check("code/train.py", target)
        self.assertEqual(found, [])
        return predicted


class Accelerate(Folder):
    def read(self, fsdp=None, **keys):
        content = changed(FSDP, **keys) | ({"fsdp_config": fsdp} if fsdp else {})
        return tessera.accelerate(self.write("config.yaml", content), "train.py:make", "dgx-h100-1")

    def test_groups_and_dtypes_are_those_of_accelerate(self):
        read = self.read(SECOND)
        self.assertEqual(read.keys["wrap"], [
            {"modules": ["layers.*"], "reshard_after_forward": True}, {"modules": ["embed"], "reshard_after_forward": True},
            {"modules": ["norm", "head"], "group": True, "reshard_after_forward": False}, {"modules": [""]}])
        self.assertEqual(read.keys["precision"], {"param": "bf16", "reduce": "bf16", "output": "bf16"})
        predicted = self.equal(read, "train_accelerate.py:make")
        if importlib.util.find_spec("accelerate"):
            self.write("own.py", ITS_OWN % {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", "FSDP_RESHARD_AFTER_FORWARD": "true",
                                            "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP", "FSDP_TRANSFORMER_CLS_TO_WRAP": "Block",
                                            "FSDP_CPU_RAM_EFFICIENT_LOADING": "false", "ACCELERATE_MIXED_PRECISION": "bf16"})
            self.write("own_forward.py", ITS_FORWARD)
            again, found = check.check("own.py", "own_forward.py:make")
            self.assertEqual((found, again["allocator"]), ([], predicted["allocator"]))

    def test_other_kinds(self):
        read = self.read(None, distributed_type="MULTI_GPU", num_processes=4)
        self.assertEqual((read.keys["api"], read.keys["world"]), ("ddp", 4))
        self.equal(read, "train_accelerate.py:make")
        read = self.read(FIRST)
        self.assertEqual((read.keys["api"], read.keys["reshard_after_forward"], read.keys["fsdp1"]),
                         ("fsdp1", False, {"backward_prefetch": "backward_pre", "forward_prefetch": True}))
        hybrid = changed(FIRST, fsdp_sharding_strategy="HYBRID_SHARD")
        self.write("config.yaml", {**FSDP, "num_processes": 16, "fsdp_config": hybrid})
        mine = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "experiments", "clusters", "cluster-dgx-h100-2.json")
        read = tessera.accelerate("config.yaml", "train.py:make", os.path.relpath(mine))
        self.assertEqual((read.keys["mesh"], os.path.isabs(read.keys["cluster"])), ({"replicate": 2, "shard": 8}, True))
        self.assertNotIn("mesh", self.read(hybrid).keys)
        read = self.read(changed(SECOND, fsdp_auto_wrap_policy="NO_WRAP", fsdp_offload_params=True), mixed_precision=False)
        self.assertEqual((read.keys["precision"], read.keys["offload"]), ({"param": "none"}, "cpu_pinned"))
        self.equal(read, "train.py:make")
        read = self.read(SECOND, parallelism_config={"parallelism_config_dp_replicate_size": 2, "parallelism_config_dp_shard_size": 4})
        self.assertEqual(read.keys["mesh"], {"replicate": 2, "shard": 4})
        self.equal(read, "train_accelerate.py:make")

    def test_inline_deepspeed(self):
        read = self.read(None, distributed_type="DEEPSPEED", deepspeed_config={
            "zero_stage": 2, "offload_optimizer_device": "cpu", "offload_param_device": "none", "zero3_init_flag": False,
            "gradient_accumulation_steps": 3, "gradient_clipping": 1.0})
        self.assertEqual((read.keys["accumulation"], read.keys["offload"], read.keys["reshard_after_forward"]),
                         ({"steps": 3}, "cpu_pinned", False))
        self.equal(read, "train.py:make")
        self.write("ds.json", ZERO)
        read = self.read(None, distributed_type="DEEPSPEED", deepspeed_config={"deepspeed_config_file": "ds.json"})
        self.assertEqual(read.keys["accumulation"], {"steps": 2})

    def test_what_is_not_known_is_refused(self):
        wrong = [
            ({}, {"distributed_type": "TPU"}, "distributed_type: found 'TPU'; allowed: FSDP, MULTI_GPU, DEEPSPEED"),
            ({}, {"num_processes": 9}, "num_processes: found 9; allowed: 1 to the 8 GPUs"),
            ({}, {"mixed_precision": "fp8"}, "mixed_precision: found 'fp8'; allowed: no, bf16, fp16"),
            ({}, {"dynamo_config": {"dynamo_backend": "INDUCTOR"}}, "dynamo_backend: found 'INDUCTOR'"),
            ({}, {"no_such_key": 1}, "no_such_key: found 1, which is not known"),
            ({}, {"parallelism_config": {"parallelism_config_tp_size": 2}}, "parallelism_config_tp_size: found 2; allowed: 1"),
            ({}, {"parallelism_config": {"parallelism_config_dp_shard_size": 3}}, "found 1 replicas of 3 shards; allowed: sizes whose"),
            ({"fsdp_version": 3}, {}, "fsdp_config.fsdp_version: found 3; allowed: 1, 2"),
            ({"fsdp_activation_checkpointing": True}, {}, "gradient_checkpointing_enable"),
            ({"fsdp_transformer_layer_cls_to_wrap": "Blok"}, {}, "found Blok; allowed: classes of the model's modules: Block, Embedding"),
            ({"fsdp_transformer_layer_cls_to_wrap": "a\x1b[2J\nb"}, {}, "found a?[2J?b; allowed"),
            ({"fsdp_version": 1, "fsdp_reshard_after_forward": None, "fsdp_sharding_strategy": [1]}, {}, "found [1]; allowed: FULL_SHARD"),
            ({"fsdp_version": 1, "fsdp_reshard_after_forward": None, "fsdp_sharding_strategy": "\xb2"}, {}, "found \xb2; allowed"),
            ({"fsdp_auto_wrap_policy": "SIZE_BASED_WRAP"}, {}, "found 'SIZE_BASED_WRAP'; allowed: TRANSFORMER_BASED_WRAP, NO_WRAP"),
            ({"fsdp_magic": 1}, {}, "fsdp_config.fsdp_magic: found 1, which is not known")]
        for fsdp, keys, words in wrong:
            with self.subTest(words), self.assertRaises(Refused) as caught:
                self.read({**SECOND, **fsdp}, **keys)
            self.assertIn(words, str(caught.exception))
        bomb = "distributed_type: FSDP\na0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
            f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 9)) + "num_processes: *a8\n"
        for text, words in (("[1, 2]", "found [1, 2]; allowed: a table"), ("a: [", "config.yaml: "), ("\xff", "found '\xff'"),
                            ("distributed_type: FSDP\n1: 2\n", "allowed: a table whose keys are names"), (bomb, "num_processes: found [["),
                            ('{"num_processes": ' + "9" * 6000 + "}", "config.yaml: "), ("[" * 100000, "config.yaml: "),
                            (" " * (1 << 21), "found more than 1048576 bytes"), ("distributed_type: 99999999999999999999\n", "found 99999"),
                            ("distributed_type: FSDP\nuse_cpu: true\n", "use_cpu: found True; allowed: False"),
                            ('distributed_type: FSDP\n"\\e[2J\\n": 1\n', "?[2J?: found 1, which is not known")):
            self.write("config.yaml", text)
            with self.subTest(text), self.assertRaises(Refused) as caught:
                tessera.accelerate("config.yaml", "train.py:make", "dgx-h100-1")
            self.assertIn(words, str(caught.exception))
            self.assertLess(len(str(caught.exception)), 400)
            self.assertTrue(str(caught.exception).isprintable())

    def test_what_is_there_stays(self):
        """Another file of the name that the prepared model gets, and a device in the place of a file."""
        mine = self.write("train_accelerate.py", "mine = 1\n")
        with self.assertRaisesRegex(Refused, "train_accelerate.py: is not a file that was written here"):
            self.read(SECOND)
        with open(mine, encoding="utf-8") as f:
            self.assertEqual(f.read(), "mine = 1\n")
        os.unlink(mine)
        read = self.read(SECOND)
        self.assertEqual(list(read.files), ["config.tessera.trace"])
        os.symlink("/dev/full", "full.yaml")
        with self.assertRaises(OSError):
            read.save("full.yaml")
        self.assertTrue(os.path.islink("full.yaml"))
        read.save("config.tessera.yaml")
        self.assertEqual([name for name in os.listdir() if name.endswith(".tmp")], [])


class DeepSpeed(Folder):
    def read(self, **keys):
        return tessera.deepspeed(self.write("ds.json", changed(ZERO, **keys)), "train.py:make", "dgx-h100-1")

    def test_a_stage_is_its_counterpart(self):
        read = self.read()
        self.assertEqual((read.keys["accumulation"], read.keys["precision"], read.keys["reshard_after_forward"], read.keys["clip"]),
                         ({"steps": 2}, {"param": "bf16", "reduce": "bf16"}, True, True))
        self.assertIn("DeepSpeed is not simulated", read.notes[0])
        predicted = self.equal(read, "train.py:make")
        self.assertEqual(predicted["settings"]["batch"], "4")   # 64 = 4 x 2 steps x 8 GPUs
        read = self.read(zero_optimization={"stage": 0}, bf16=None, train_batch_size="auto")
        self.assertEqual(read.keys["api"], "ddp")
        self.equal(read, "train.py:make")

    def test_what_is_not_known_is_refused(self):
        wrong = [
            ({"zero_optimization": {"stage": 1}}, "zero_optimization.stage: found 1; allowed: 0, 2, 3"),
            ({"zero_optimization": {"stage": 0}}, "found 0 with weights in 16 bits"),
            ({"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}}, "offload_param: found 'nvme'"),
            ({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}}, "allowed: both cpu or both none"),
            ({"zero_optimization": {"stage": 3, "zero_quantized_weights": True}}, "zero_quantized_weights: found True, which is not known"),
            ({"train_batch_size": 65}, "train_batch_size: found 65; allowed: the product"),
            ({"bf16": {"enabled": "auto"}}, "bf16.enabled: found auto"),
            ({"fp16": {"enabled": True}}, "true beside bf16.enabled"),
            ({"optimizer": {"type": "Lion"}}, "optimizer.type: found 'Lion'; allowed: AdamW, Adam"),
            ({"gradient_clipping": float("inf")}, "gradient_clipping: found inf; allowed: a number from 0"),
            ({"gradient_clipping": "much"}, "gradient_clipping: found 'much'"),
            ({"gradient_accumulation_steps": 0}, "gradient_accumulation_steps: found 0"),
            ({"hybrid_engine": {"enabled": True}}, "hybrid_engine.enabled: found True, which is not known")]
        for keys, words in wrong:
            with self.subTest(words), self.assertRaises(Refused) as caught:
                self.read(**keys)
            self.assertIn(words, str(caught.exception))


class Shell(Folder):
    def test_the_kind_is_found(self):
        self.write("config.yaml", {**FSDP, "fsdp_config": SECOND})
        self.write("ds.json", ZERO)
        self.write("train.toml", "[model]\n")

        def run(*words):
            return subprocess.run([sys.executable, "-m", "tessera", "config", *words, "--cluster", "dgx-h100-1"], text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
        for name in ("config.yaml", "ds.json"):
            done = run(name, "train.py:make", "--batch", "1", "-o", f"{name}.here.yaml")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("Simulated: ", done.stdout)
            self.assertIn("batch: 1" if name == "ds.json" else "wrap: a group of each of 3 Block", done.stdout)
        for words, said in ((("config.yaml",), "names no model; allowed: FILE.py:FUNCTION"),
                            (("train.toml", "train.py:make"), "torchtitan's file names the model"),
                            (("train.py", "train.py:make"), "train.py: "), (("none.yaml", "train.py:make"), "none.yaml: No such file"),
                            (("config.yaml", "train.py"), "name a function as FILE.py:FUNCTION")):
            done = run(*words)
            self.assertEqual(done.returncode, 2)
            self.assertIn(said, done.stderr)
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)


if __name__ == "__main__":
    unittest.main()
