#!/usr/bin/env python3
"""Random strategies: what the real FSDP2 takes on the stand-in device, beside what is predicted from one
trace a condition. All figures of iterations 0 and 1 must agree.

    mixes.py [--seed N] [--traces N] [--strategies N] [--models NAME,...] [--log FILE] [--keep DIR]

--traces: models with a condition (sizes, dtype, checkpointing, frozen parameters, hooked modules), each
traced once; --strategies: of each. Prints a line for each that differs, and counts; exit status 1 if any
does. Environment: TESSERA names the program.
"""
import argparse
import json
import os
import random
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
LLM = ["model.layers.*"]
# file: (wraps, sizes of the model, sizes of inputs, patterns that may be frozen)
MODELS = {
    "vit": ([["vit.layers.*"], ["vit.layers.*.attention", "vit.layers.*"]], [{"layers": 2}, {"layers": 3, "hidden": 128, "heads": 4}], [{}, {"n": 3}], ["vit.embeddings.**"]),
    "t5": ([["encoder.block.*", "decoder.block.*"]], [{"layers": 2}, {"layers": 2, "dropout": 0.1}], [{}], []),
    "bert": ([["bert.encoder.layer.*"]], [{}], [{}], ["bert.embeddings.**"]),
    "mixtral": ([LLM, ["model.layers.*.mlp", "model.layers.*"]], [{"layers": 2}], [{}, {"n": 1, "seq": 256}], []),
    "qwen3_moe": ([LLM], [{}], [{}], []),
    "unet": ([["down.*", "mid", "up.*"], ["down.*", "up.*"]], [{}, {"width": 32}], [{}, {"n": 2, "size": 64}], ["temb.**"]),
    "dlrm": ([["bottom", "top"], ["top"]], [{}], [{}], ["bottom.**"]),
    "lora": ([["blocks.*"]], [{}, {"layers": 3, "dropout": 0.1}], [{}, {"n": 1, "seq": 512}], []),
    "clip": ([["text_model.encoder.layers.*", "vision_model.encoder.layers.*"]], [{"layers": 2}], [{}], ["vision_model.**"]),
    "mamba2": ([["backbone.layers.*"]], [{}], [{}], []),
    "resnet": ([["stages.*.*"], ["stages.*"]], [{}], [{}], ["stem.**"]),
    "custom_fn": ([["blocks.*"]], [{}, {"layers": 3, "d": 192}], [{}, {"n": 2}], ["inp.**"]),
    "gpt": ([["blocks.*"], ["blocks.*.mlp", "blocks.*"]], [{}, {"tied": True}], [{}, {"n": 1, "seq": 96}], ["wte.**"]),
    "diffusion": ([["blocks.*"]], [{}, {"layers": 4}], [{}, {"n": 5}], ["time.**"]),
    "retriever": ([["query.*", "passage.*"]], [{}], [{}], ["query.0.**"]),
    "llama": ([LLM, ["model.layers.*.mlp", "model.layers.*.self_attn", "model.layers.*"]], [{}, {"tied": True}], [{}, {"n": 1, "seq": 200}],
              ["model.embed_tokens.**"]),
    "turns": ([["blocks.*"]], [{}, {"turns": 2}], [{}], ["words.**"]),
    "speech": ([["blocks.*"], ["blocks.*.self_attn", "blocks.*"]], [{}, {"layers": 3}], [{}, {"n": 3}], ["first.**"]),
    "experts": ([["blocks.*"]], [{}, {"n": 7, "d": 120}], [{}, {"n": 1}], []),
    "scan": ([["cells.*"], ["cells.*", "heads.*"]], [{}, {"layers": 3}], [{}, {"n": 5}], ["heads.0.**"]),
}


def condition(r, name):
    wraps, sizes, inputs, frozen = MODELS[name]
    kind = r.choice(["bf16", "bf16", "bf16", "none", "autocast"])
    recomputed = r.choice(["none", "none", "full", "every2"])
    return {"model": {"file": name + ".py", "kwargs": r.choice(sizes)}, "inputs": r.choice(inputs), "wrap": r.choice(wraps),
            "param_dtype": "bf16" if kind == "bf16" else None, "autocast": "bf16" if kind == "autocast" else None,
            # One place of a shared block would be wrapped, and the others not.
            "ac": "none" if name == "turns" else recomputed, "frozen": frozen if frozen and r.random() < 0.25 else [],
            "sdpa": r.choice(["flash", "flash", "efficient", "math"]), "hooks": r.choice(["wrapped", "all"])}


def strategy(r, base):
    kind = r.choice(["fsdp"] * 4 + ["hsdp"] * 2 + ["replicate"])
    mesh = [r.randint(1, 32)] if kind != "hsdp" else [r.randint(2, 4), r.randint(1, 8)]
    shards = mesh[-1]
    reshard = r.choice([True, False, None, r.choice([d for d in range(1, shards + 1) if shards % d == 0])])
    accumulation = r.choice([1, 1, 1, 2, 3])
    modes = ["reduce_each", "no_reduce", "no_reduce_no_reshard"] + (["no_all_reduce"] if kind == "hsdp" else [])
    world = mesh[0] * (mesh[1] if len(mesh) > 1 else 1)
    return {**base, "kind": "replicate" if kind == "replicate" else "fsdp", "mesh": mesh, "rank": r.randrange(world),
            "reshard_after_forward": reshard, "root_reshard": r.choice([None, None, None, True, False]) if kind != "replicate" else None,
            "reduce_dtype": r.choice([None, "bf16", "fp32"]), "output_dtype": None, "cast_forward_inputs": True,
            "optimizer": r.choice(["adamw_foreach", "adamw_fused", "adamw_loop", "sgd", "sgd_momentum", "none"]),
            "fwd_prefetch": r.choice([0, 0, 1, 2]), "bwd_prefetch": r.choice([0, 0, 1, 2]), "grad_accum": accumulation,
            "accum_mode": r.choice(modes) if accumulation > 1 else "reduce_each",
            "cpu_offload": r.choice([None, None, None, "pageable", "pinned"]) if kind != "replicate" else None,
            "device_bytes": 1 << 40, "expandable_segments": False, "iters": 2, "clip": False, "read_bool": True}


# ---- the worker: a process with the stand-in loaded, which forks for each run ------------------------------------


def worker():
    import torch
    import torch.distributed as dist
    import transformers  # once, before any fork
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
    from tessera import file, real, scenario, source, tracer

    dtypes = scenario.DTYPES
    probed = {}
    probe = tracer.probe

    def probe_and_keep(source, choice):
        probed["reads"] = (seen := probe(source, choice))["reads"]
        return seen

    tracer.probe = probe_and_keep

    class Source(scenario.Scenario):
        """Hooked at the wrapped modules alone, or as a person's model: beside the blocks, too."""
        everywhere = False

        def prepare(self, choice):
            job = super().prepare(choice)
            if not self.everywhere:
                return job
            return job._replace(hooked=source.hooked(job.tables, job.kept))

    class Sharded:
        """What is written by hand for a scenario."""

        def __init__(self, s):
            self.s = s
            if s["grad_accum"] > 1 and s["accum_mode"] != "reduce_each":
                self.before_micro_batch = self.accumulate

        def build_mesh(self):
            return init_device_mesh("cuda", tuple(self.s["mesh"]), mesh_dim_names=("replicate", "shard")[-len(self.s["mesh"]):])

        def apply(self, model, mesh):
            s = self.s
            names = scenario.matching([n for n, _ in model.named_modules() if n], s["wrap"])
            for i, name in enumerate(sorted(names, key=lambda n: -n.count("."))):
                if s["ac"] == "full" or (s["ac"] == "every2" and i % 2 == 0):
                    parent, _, last = name.rpartition(".")
                    parent = at(model, parent)
                    parent._modules[last] = checkpoint_wrapper(parent._modules[last])
            policy = MixedPrecisionPolicy(dtypes[s["param_dtype"]], dtypes[s["reduce_dtype"]], None, s["cast_forward_inputs"])
            options = {"mesh": mesh, "mp_policy": policy}
            if s["kind"] == "replicate":
                from torch.distributed._composable.replicate_with_fsdp import replicate
                for name in sorted(names, key=lambda n: -n.count(".")):
                    replicate(at(model, name), **options)
                replicate(model, **options)
            else:
                if s["cpu_offload"]:
                    options["offload_policy"] = CPUOffloadPolicy(pin_memory=s["cpu_offload"] == "pinned")
                for name in sorted(names, key=lambda n: -n.count(".")):
                    fully_shard(at(model, name), reshard_after_forward=s["reshard_after_forward"], **options)
                fully_shard(model, reshard_after_forward=s["root_reshard"], **options)
            units = [at(model, n) for n in names]
            for i, unit in enumerate(units):
                if s["fwd_prefetch"]:
                    unit.set_modules_to_forward_prefetch(units[i + 1:i + 1 + s["fwd_prefetch"]])
                if s["bwd_prefetch"]:
                    unit.set_modules_to_backward_prefetch(units[max(0, i - s["bwd_prefetch"]):i][::-1])
            return model

        def accumulate(self, model, last):
            if self.s["accum_mode"] == "no_all_reduce":
                model.set_requires_all_reduce(last)
            else:
                model.set_requires_gradient_sync(last)
            if self.s["accum_mode"] == "no_reduce_no_reshard":
                model.set_reshard_after_backward(last)
            model.set_is_last_backward(last)

    def at(model, name):
        for part in name.split(".") if name else ():
            model = getattr(model, "_checkpoint_wrapped_module", model)
            model = model._modules[part]
        return model

    def run(path, reads):
        recorded = Source(path)
        s = recorded.scenario
        job = recorded.prepare(recorded.choices()[0])
        world = 1
        for n in s["mesh"]:
            world *= n
        half = len(reads) // 2   # of one of the two iterations that were traced
        recipe = {"world": world, "rank": s["rank"], "offload": s["cpu_offload"], "optimizer": s["optimizer"],
                  "micro_batches": s["grad_accum"], "autocast": dtypes[s["autocast"]], "sdpa": s["sdpa"]}
        return real.run(job, Sharded(s), recipe, [value for _, _, value in reads[:half]])

    for line in sys.stdin:
        request = json.loads(line)
        Source.everywhere = request["hooks"] == "all"
        try:
            if "trace" in request:
                with open(request["trace"], "wb") as f:
                    f.write(file.pack(tracer.trace(Source(request["scenario"]))))
                answer = {}
            else:
                answer = {"phases": tracer.in_process(run, request["scenario"], probed["reads"])}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}
        os.write(3, (json.dumps(answer) + "\n").encode())


class Worker:
    def __init__(self):
        from tessera import standin
        reading, writing = os.pipe()
        cuda, _ = standin.check()

        def move():
            os.dup2(writing, 3)
        self.process = subprocess.Popen([sys.executable, os.path.abspath(__file__), "--worker"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL if not os.environ.get("MIXES_STDERR") else None, text=True, env=standin.environment(cuda), pass_fds=[3] if writing == 3 else [],
                                        preexec_fn=move, close_fds=False)
        os.close(writing)
        self.answers = os.fdopen(reading)

    def ask(self, **request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return json.loads(self.answers.readline() or '{"error": "the worker died"}')

    def end(self):
        self.process.stdin.close()
        self.process.wait()


# ---- the comparison -------------------------------------------------------------------------------------------


FIGURES = [f"{when}_{what}" for when in ("peak", "end") for what in ("allocated", "requested", "reserved")]


def differences(real, predicted):
    left, right = ({(p["iter"], p["phase"]): p for p in phases if p["iter"] < 2} for phases in (real, predicted))
    if left.keys() != right.keys():
        return [f"phases {sorted(left.keys() ^ right.keys())}"]
    return [f"{key} {figure}: real {left[key][figure]}, predicted {right[key][figure]}"
            for key in left for figure in FIGURES if left[key][figure] != right[key][figure]]


def predicted(program, path, trace, out):
    done = subprocess.run([program, "memory", path, "--trace", trace, "-o", out], capture_output=True, text=True)
    if done.returncode:
        return {"error": done.stderr.strip().splitlines()[-1]}
    with open(out, encoding="utf-8") as f:
        return {"phases": json.load(f)["allocator"]["phases"]}


def judge(truth, guess):
    """equal, differs, or which side has refused it."""
    if "error" in truth:
        return ("refused" if "error" in guess else "only FSDP2 refuses"), [truth["error"], guess.get("error", "")]
    if "error" in guess:
        return "only the prediction refuses", [guess["error"]]
    found = differences(truth["phases"], guess["phases"])
    return ("differs" if found else "equal"), found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--traces", type=int, default=len(MODELS))
    parser.add_argument("--strategies", type=int, default=5)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--log")
    parser.add_argument("--keep")
    options = parser.parse_args()
    program = os.environ.get("TESSERA") or os.path.join(HERE, "..", "..", "build", "tessera")
    r, names, counts = random.Random(options.seed), options.models.split(","), {}
    log = open(options.log, "a", encoding="utf-8") if options.log else None
    with tempfile.TemporaryDirectory() as folder:
        os.mkdir(f"{folder}/models")
        for source in (os.path.join(HERE, "..", "golden-bridge", "models"), os.path.join(HERE, "mixed")):
            for name in os.listdir(source):
                os.symlink(os.path.join(os.path.abspath(source), name), f"{folder}/models/{name}")
        worker = Worker()
        path, trace = f"{folder}/scenario.json", f"{folder}/model.trace"

        def count(kind, scenario, found):
            counts[kind] = counts.get(kind, 0) + 1
            if kind not in ("equal", "refused"):
                print(f"{kind}: {json.dumps(scenario)}\n    " + "\n    ".join(found[:8]), flush=True)
            if log:
                log.write(json.dumps({"seed": options.seed, "kind": kind, "scenario": scenario, "found": found}) + "\n")
                log.flush()

        for i in range(options.traces):
            base = condition(r, names[i % len(names)])
            strategies = [strategy(r, base) for _ in range(options.strategies)]
            write(path, strategies[0])
            made = worker.ask(scenario=path, hooks=base["hooks"], trace=trace)
            if "error" in made:
                count("not traced", base, [made["error"]])
                continue
            for s in strategies:
                write(path, s)
                truth, guess = worker.ask(scenario=path, hooks=s["hooks"]), predicted(program, path, trace, f"{folder}/result.json")
                kind, found = judge(truth, guess)
                count(kind, s, found)
                if options.keep and kind == "differs":
                    keep(options.keep, s, truth, trace)
        worker.end()
    print(", ".join(f"{n} {kind}" for kind, n in sorted(counts.items())))
    return 0 if counts.get("equal") and not counts.keys() - {"equal", "refused"} else 1


def write(path, scenario):
    with open(path, "w", encoding="utf-8") as f:
        json.dump({"name": "mix", "scenario": {k: v for k, v in scenario.items() if k != "hooks"}}, f)


def keep(folder, scenario, truth, trace):
    os.makedirs(folder, exist_ok=True)
    name = f"{folder}/{scenario['model']['file'][:-3]}-{len(os.listdir(folder))}"
    with open(name + ".json", "w", encoding="utf-8") as f:
        json.dump({"name": "mix", "scenario": scenario, "allocator": {"phases": truth["phases"]}}, f)
    with open(trace, "rb") as f, open(name + ".trace", "wb") as g:
        g.write(f.read())


if __name__ == "__main__":
    sys.exit(worker() if "--worker" in sys.argv else main())
