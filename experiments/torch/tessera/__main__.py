"""The shell's side: `python -m tessera trace | memory | check | config | measure`."""

import argparse
import os
import sys
import tempfile

from . import api, check, configs, program, start
from .errors import Refused
from .measured import measure


def listed(kind):
    def parse(text):
        try:
            return [kind(part) for part in text.split(",")]
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a list like 1,2") from None
    return parse


def reading(text):
    name, separator, value = text.rpartition("=")
    if not separator or not value.lstrip("-").isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not MODULE:OPERATOR=INTEGER")
    return name, int(value)


def options():
    parser = argparse.ArgumentParser(prog="python -m tessera", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    add = commands.add_parser("trace", help="trace a model into a file")
    add.add_argument("target", metavar="FILE.py:FUNCTION")
    add.add_argument("-o", "--out", required=True, metavar="MODEL.trace")
    add.add_argument("--dtype", default="bf16", choices=api.DTYPES)
    add.add_argument("--output", default="none", choices=api.OUTPUTS, help="what wrapped modules cast their outputs to")
    add.add_argument("--ddp", default="none", choices=api.DDP, help="clone the model's outputs, as DDP does with this option")
    add.add_argument("--batch", type=listed(int), metavar="N,...")
    add.add_argument("--seq", type=listed(int), metavar="N,...")
    add.add_argument("--checkpoint", type=listed(str), default=["none"], metavar="KIND,...",
                     help=", ".join(api.CHECKPOINTS))
    add.add_argument("--blocks", type=listed(str), metavar="PATTERN,...",
                     help="modules that are checkpointed, as 'model.layers.*'")
    add.add_argument("--wrap", type=listed(str), action="extend", metavar="PATTERN,...",
                     help="modules that strategies will wrap, instead of the blocks and what is beside them; root: the "
                     "model alone; norm+head: both in one call")
    add.add_argument("--sdpa", default="flash", choices=api.SDPA)
    add.add_argument("--readback", type=reading, action="append", default=[],
                     metavar="MODULE:OPERATOR=VALUE", help="what the program reads from the device there")
    add.add_argument("--load-factor", type=float, default=1.0, metavar="X",
                     help="tokens of the busiest expert over the average, where routing decides shapes")
    add = commands.add_parser("memory", help="trace a recorded scenario's model and predict its memory")
    add.add_argument("scenario", metavar="SCENARIO.json")
    add.add_argument("-o", "--out", metavar="RESULT.json")
    add.add_argument("-t", "--timeline", metavar="FILE")
    add.add_argument("--from-trace", action="store_true",
                     help="trace the model as `trace` does; with what the scenario wraps only where that trace refuses")
    add = commands.add_parser("check", help="run written code with the real FSDP2, FSDP1 or DDP, compare its memory")
    add.add_argument("strategy", metavar="STRATEGY.py")
    add.add_argument("target", metavar="FILE.py:FUNCTION")
    add.add_argument("--experiment", metavar="FILE", help="what it was written from (default: the name in "
                     "its first comment, beside it or here)")
    add.add_argument("--world", type=int, metavar="N", help="ranks (default: the strategy's)")
    add.add_argument("--rank", type=int, default=0, metavar="R")
    add = commands.add_parser("config", help="read a configuration of torchtitan, Accelerate or DeepSpeed: what it costs, what one "
                              "change gains")
    add.add_argument("file", metavar="TRAIN.toml|CONFIG.yaml|DS_CONFIG.json")
    add.add_argument("target", metavar="FILE.py:FUNCTION", nargs="?", help="what makes the model; torchtitan's file names it itself")
    add.add_argument("--cluster", required=True, metavar="NAME", help="a shipped cluster (dgx-h100-1), or a file")
    add.add_argument("--batch", type=int, metavar="N", help="given to FUNCTION")
    add.add_argument("--seq", type=int, metavar="N", help="given to FUNCTION")
    add.add_argument("-o", "--out", metavar="FILE.yaml", help="the experiment file (default: beside the configuration)")
    add = commands.add_parser("measure", help="time a model's kernels on this machine: a cluster that plan and compare take")
    add.add_argument("target", metavar="FILE.py:FUNCTION")
    add.add_argument("-o", "--out", required=True, metavar="FOLDER")
    add.add_argument("--dtype", default="bf16", choices=api.DTYPES)
    add.add_argument("--batch", type=int, metavar="N", help="given to FUNCTION")
    add.add_argument("--seq", type=int, metavar="N", help="given to FUNCTION")
    add.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    add.add_argument("--steps", type=int, default=5, metavar="N", help="that are profiled (default 5)")
    return parser


def config_command(arguments):
    read = configs.read(arguments.file, arguments.cluster, arguments.target, arguments.batch, arguments.seq)
    path = arguments.out or os.path.splitext(arguments.file)[0] + ".tessera.yaml"
    read.save(path)
    print("\n".join(configs.report(read, path)))
    return 0


def measure_command(arguments):
    print(measure(arguments.target, arguments.out, arguments.dtype, arguments.batch, arguments.seq, arguments.device, arguments.steps))
    return 0


def trace_command(arguments):
    made = api.trace(arguments.target, arguments.dtype, arguments.batch, arguments.seq,
                       arguments.checkpoint, arguments.blocks, arguments.sdpa, dict(arguments.readback),
                       arguments.load_factor, arguments.wrap, arguments.output, arguments.ddp)
    made.save(arguments.out)
    for v in made.content["variants"]:
        where = sorted({f"{made.content['modules'][m][0] or 'the model'}: {op} = {value}"
                        for m, op, value in v["conditions"]["readbacks"]})
        for line in where:
            print(f"tessera: note: {v['name']}: answered {line}", file=sys.stderr)
        routing = v["conditions"]["routing"]
        if routing:
            print(f"tessera: note: {v['name']}: routing is not known without data: {routing['distribution']}"
                  f", load factor {routing['load_factor']}", file=sys.stderr)
    print(f"{arguments.out}: {len(made.packed)} bytes, {', '.join(made.variants)}")
    return 0


def memory_command(arguments):
    try:
        play_scenario(arguments, arguments.from_trace)
    except Refused as error:
        if not arguments.from_trace or " wrapped" not in str(error):
            raise
        print(f"tessera: note: traced again with what the scenario wraps: {error}", file=sys.stderr)
        play_scenario(arguments, False)
    return 0


def play_scenario(arguments, as_traced):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.trace")
        with open(path, "wb") as f:
            f.write(start.child({"scenario": os.path.abspath(arguments.scenario), "as_traced": as_traced}))
        line = ["memory", arguments.scenario, "--trace", path]
        for option, value in (("-o", arguments.out), ("-t", arguments.timeline)):
            line += [option, value] if value else []
        sys.stdout.write(program.run(line))


def check_command(arguments):
    predicted, found = check.check(arguments.strategy, arguments.target, arguments.world, arguments.rank,
                                   arguments.experiment)
    print("\n".join(check.report(arguments.strategy, predicted, found)))
    return 1 if found else 0


def main():
    arguments = options().parse_args()
    try:
        return {"trace": trace_command, "memory": memory_command,
                "check": check_command, "config": config_command, "measure": measure_command}[arguments.command](arguments)
    except Refused as error:
        print(f"tessera: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"tessera: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
