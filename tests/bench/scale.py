#!/usr/bin/env python3
"""scale.py: how long tessera itself takes for large clusters and large sweeps; a benchmark, not a
test.

    tests/bench/scale.py [PROGRAM]        (default: build/tessera, or TESSERA)

Prints wall time and the largest process of each part, with its target: Llama-3.1-405B on 16,384
GPUs, from file to table and pictures, on one core; the same with one slow GPU; a symmetric step by
the number of GPUs; 200 configurations of an 8B model on 256 GPUs, on two cores; and how the time
grows if every GPU is simulated. Figures depend on the machine and its load, which is printed.
"""
import os
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
PROGRAM = sys.argv[1] if len(sys.argv) > 1 else os.environ.get(
    "TESSERA", os.path.join(ROOT, "build", "tessera"))


def run(name, sets, cores, out=None):
    """Seconds, and bytes of the largest process."""
    args = [PROGRAM, "compare", os.path.join(HERE, name + ".yaml"), "--jobs", str(cores)]
    args += ["--out", out] if out else []
    for item in sets:
        args += ["--set", item]
    allowed = sorted(os.sched_getaffinity(0))[:cores]
    begin = time.monotonic()
    child = subprocess.Popen(args, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                             preexec_fn=lambda: os.sched_setaffinity(0, allowed))
    said = child.stderr.read()
    _, status, usage = os.wait4(child.pid, 0)
    seconds = time.monotonic() - begin
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        sys.exit(f"{' '.join(args)}: exit status {child.returncode}: {said.decode().strip()}")
    return seconds, usage.ru_maxrss * 1024


def part(what, name, sets, cores, target_s=None, target_bytes=None, pictures=False):
    with tempfile.TemporaryDirectory() as out:
        seconds, memory = run(name, sets, cores, out if pictures else None)
    line = f"{what:<58} {seconds:7.2f} s  {memory / 2**20:6.0f} MiB"
    if target_s:
        line += f"  target {target_s:g} s: {seconds / target_s:.2f} of it"
    if target_bytes:
        line += f"; {target_bytes / 2**20:.0f} MiB: {memory / target_bytes:.2f} of it"
    print(line, flush=True)


def main():
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"load average {load}; {os.cpu_count()} cores")
    part("Llama-3.1-405B, 16,384 GPUs, HSDP 128 x 128, pictures", "scale-405b", [], 1, 5, 2**30,
         pictures=True)
    part("the same with one slow GPU", "scale-405b",
         ["sim.slow_rank=21", "sim.slow_factor=1.3"], 1, 15, pictures=True)
    for world in (256, 2048, 16384):
        part(f"the same on {world} GPUs, symmetric", "scale-405b",
             [f"world={world}", f"mesh=[{world // 128}, 128]"], 1)
    part("200 configurations of Llama-3.1-8B on 256 GPUs, two cores", "scale-sweep", [], 2, 60)
    for world in (16, 32, 64, 128):
        part(f"Llama-3.1-8B, {world} GPUs, every GPU simulated", "scale-growth",
             [f"world={world}"], 1)


if __name__ == "__main__":
    main()
