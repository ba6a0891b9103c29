"""Each thing that FSDP2 refuses or does wrong is refused by the tracer, in one line with the module:
what the real FSDP2 does with the same model is asked here, too."""

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

import tessera
from tessera import standin

HERE = os.path.dirname(os.path.abspath(__file__))
MODELS = os.path.join(HERE, "models.py")

# case: (what the real FSDP2 says, what the tracer says, blocks)
CASES = {
    "scalar": ("ValueError: fully_shard doesn't support scalar parameters",
               r"the model: parameter temperature is a scalar", None),
    "in_place": (r"RuntimeError: .* is a view and is being modified inplace",
                 r"blocks\.0: writes into an input", None),
    "mutated_list": ("IndexError", r"blocks\.0: changes a list or dictionary", None),
    "child_weight": ("RuntimeError: .*mixed torch.Tensor and DTensor",
                     r"blocks\.0\.down: its parameter blocks\.0\.down\.weight is used by blocks\.0",
                     ["blocks.*.down"]),
    "other_method": ("RuntimeError: .*mixed torch.Tensor and DTensor",
                     r"blocks\.0: its parameter .* while it is not called", None),
    "tie": ("untied", r"blocks\.0: shares blocks\.0\.down\.weight with head|blocks\.0: shares head\.weight",
            None),
    "ok": ("works", None, None),
}


class Pitfalls(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cuda, _ = standin.check()
        done = subprocess.run([sys.executable, os.path.join(HERE, "real.py"), *CASES], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=HERE,
                              env=standin.environment(cuda))
        if done.returncode:
            raise RuntimeError(done.stderr)
        cls.real = json.loads(done.stdout.splitlines()[-1])

    def refusal(self, case, **options):
        with self.assertRaises(tessera.Refused) as caught:
            tessera.trace(f"{MODELS}:{case}", **options)
        text = str(caught.exception)
        self.assertNotIn("\n", text)
        return text

    def test_fsdp2_and_tracer_refuse_the_same(self):
        for case, (real, ours, blocks) in CASES.items():
            with self.subTest(case):
                self.assertRegex(self.real[case], real)
                if ours:
                    self.assertRegex(self.refusal(case, blocks=blocks), "^(" + ours + ")")

    def test_pitfall_of_a_module_that_is_no_block_is_kept_for_the_strategies(self):
        trace = tessera.trace(f"{MODELS}:child_weight")
        names = {trace.modules()[i]: reason
                 for i, reason in trace.content["variants"][0]["conditions"]["cannot"]}
        self.assertEqual(sorted(n for n, reason in names.items() if "is used by" in reason),
                         ["blocks.0.down", "blocks.1.down", "blocks.2.down"])
        self.assertIn("has no forward", names["blocks"])

    def test_models_that_no_strategy_can_shard(self):
        for case, text in (("compiled", "first: is compiled"), ("recurrent", "memory: LSTM runs cuDNN"),
                           ("frozen", "no parameter needs a gradient"),
                           ("no_scalar_loss", "the loss is a tensor of shape")):
            with self.subTest(case):
                self.assertRegex(self.refusal(case), text)

    def test_calls_of_libraries_that_need_a_gpu(self):
        """One line with module and operator, also where the library takes the process down."""
        for case, operator in (("fourier", "aten._fft_r2c.default"), ("orthogonal", "aten.linalg_qr.default"),
                               ("factored", "aten.linalg_cholesky_ex.default"), ("dies", "tests.dies.default"),
                               ("inverse", "aten.linalg_inv_ex.default"),
                               ("connectionist", "aten._cudnn_ctc_loss.default")):
            with self.subTest(case):
                self.assertRegex(self.refusal(case), f"^inner: {re.escape(operator)} calls a library that needs a GPU")

    def test_a_kernel_that_torch_compiles_when_it_is_called(self):
        """Works where NVRTC is installed beside torch; one line elsewhere."""
        try:
            tessera.trace(MODELS + ":bessel", dtype="none")
        except tessera.Refused as error:
            self.assertRegex(str(error), "^inner: aten.special_bessel_j0.default calls a library that needs a GPU")

    def test_a_buffer_that_a_step_replaces_is_named(self):
        self.assertRegex(self.refusal("replaces"), "^inner.table: is replaced by another tensor in a step")

    def test_a_list_may_be_changed_by_what_is_not_wrapped(self):
        trace = tessera.trace(f"{MODELS}:collects")
        conditions = trace.content["variants"][0]["conditions"]
        names = {trace.modules()[i]: reason for i, reason in conditions["cannot"]}
        self.assertIn("changes a list or dictionary", names["collect"])
        self.assertNotIn("collect", [trace.modules()[i] for i in conditions["hooked"]])
        self.assertRegex(self.refusal("collects", wrap=["blocks.*", "collect"]), "^collect: changes a list or dictionary")

    def test_a_models_own_mistake_is_said(self):
        self.assertRegex(self.refusal("fails"), "^the model: ValueError: a mistake of its own$")

    def test_a_mistake_in_the_backward_pass_names_the_module_of_the_forward(self):
        self.assertRegex(self.refusal("normalized", dtype="bf16"),
                         "^norm, backward: RuntimeError: Expected running_mean to have type BFloat16 but got Float$")

    def test_files_may_ask_for_cuda_as_they_are_loaded_but_not_use_it(self):
        def trace(line):
            with tempfile.NamedTemporaryFile("w", suffix=".py") as f:
                f.write(f"import torch\n{line}\nassert torch.cuda.is_available() and torch.cuda.device_count() == 1\n"
                        "def net():\n    return torch.nn.Linear(8, 8), {'input': torch.empty(2, 8)}, lambda y, batch: y.mean()\n")
                f.flush()
                return f.name, tessera.trace(f.name + ":net")
        trace("DEVICE = 'cuda' if torch.cuda.is_available() else 'cpu'")
        with self.assertRaisesRegex(tessera.Refused, r"^\S+: initialises CUDA while it is loaded"):
            trace("torch.zeros(1, device='cuda')")

    def test_a_run_that_ends_by_itself_names_its_status(self):
        self.assertRegex(self.refusal("leaves"), "^the traced run ended the process with status 3$")

    def test_mistakes_in_the_call(self):
        for target, options, text in (
                (MODELS, {}, "name a function as FILE.py:FUNCTION"),
                (f"{MODELS}:nothing", {}, "has no function 'nothing'"),
                ("nowhere.py:make", {}, "no such Python file"),
                (f"{MODELS}:tie", {"batch": 2}, "takes no parameter 'batch'"),
                (f"{MODELS}:ok", {"blocks": ["layers.*"]}, "no module is called 'layers")):
            with self.subTest(target):
                with self.assertRaisesRegex(tessera.Refused, re.escape(text)):
                    tessera.trace(target, **options)


if __name__ == "__main__":
    unittest.main()
