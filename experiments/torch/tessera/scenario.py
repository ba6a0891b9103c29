"""A recorded scenario (the format of golden-bridge) as something to trace: its model file, inputs,
wrapped modules, policy."""

import json
import os
import re

import torch

from . import model
from .errors import Refused
from .source import Choice, Job, Source, hooked, load_file

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, None: None}


def matching(names, patterns):
    """Names that one of the patterns describes; `*` is one part of a name, `**` any number."""
    def expression(pattern):
        return re.escape(pattern).replace(r"\*\*", ".+").replace(r"\*", "[^.]+")
    return [n for n in names if any(re.fullmatch(expression(p), n) for p in patterns)]


class Scenario(Source):
    strict = False  # FSDP2 ran it

    def __init__(self, path):
        with open(path, encoding="utf-8") as f:
            document = json.load(f)
        self.scenario = document.get("scenario", document)
        name = self.scenario["model"]["file"]
        self.models = os.path.join(os.path.dirname(os.path.abspath(path)), "models", name)
        super().__init__(
            param_dtype=DTYPES[self.scenario["param_dtype"]],
            cast_inputs=self.scenario.get("cast_forward_inputs", True),
            output_dtype=DTYPES[self.scenario.get("output_dtype")],
            autocast=DTYPES[self.scenario.get("autocast")], sdpa=self.scenario.get("sdpa", "flash"),
            read_bool=self.scenario.get("read_bool", True), name=name)
        self.file = load_file(self.models)

    def choices(self):
        return [Choice(None, None, self.scenario.get("ac", "none"))]

    def prepare(self, choice):
        torch.manual_seed(0)
        with torch.device("meta"):
            built = self.file.build(**self.scenario["model"].get("kwargs", {}))
        built.train()
        for name in matching([n for n, _ in built.named_parameters()], self.scenario.get("frozen", [])):
            built.get_parameter(name).requires_grad_(False)
        tables = model.Tables(built)
        wrapped = self._modules(tables, self.scenario["wrap"])
        candidates = self._modules(tables, self.scenario.get("ac_modules") or self.scenario["wrap"])
        inputs = self.scenario.get("inputs", {})
        kept, hooks = self.hooks(tables, wrapped)
        return Job(built, tables, hooked=hooks, kept=kept, blocks=sorted(wrapped),
                   checkpointed=model.checkpointed(choice.checkpoint, candidates),
                   batch=lambda: self.file.batch("cuda", **inputs),
                   forward=self.file.forward, loss=self.file.loss)

    def hooks(self, tables, wrapped):
        """Modules that must be hooked, and those that are."""
        return [0, *wrapped], [0, *wrapped]

    def _modules(self, tables, patterns):
        """Deeper modules first, otherwise in order: the order in which they are sharded."""
        found = matching(tables.names[1:], patterns)
        if patterns and not found:
            raise Refused(f"no module is called {patterns[0]!r}")
        return [tables.number[n] for n in sorted(found, key=lambda n: -n.count("."))]


class AsTraced(Scenario):
    """The scenario's model as `trace` hooks it for a person: at the blocks that it finds by itself and what is beside
    them. What such a trace cannot say is traced with `--wrap` (Scenario)."""
    strict = True

    def hooks(self, tables, wrapped):
        blocks = model.blocks(tables)
        return [0, *blocks], hooked(tables, blocks)
