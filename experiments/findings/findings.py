#!/usr/bin/env python3
"""findings.py PROGRAM TO NAME...: simulates NAME.yaml, writes what its picture shows into TO/NAME.csv and the two sentences of
the answer into TO/NAME.md, whose figures are the program's. What a sentence says in words (wins, never, no more than) is
asserted: a finding that no longer holds ends with a line and exit status 1. make.sh calls it.
"""
import csv
import os
import re
import subprocess
import sys
import textwrap

HERE = os.path.dirname(os.path.abspath(__file__))
GIB = 1 << 30
RATES = {"400": "50e9", "300": "37.5e9", "200": "25e9", "150": "18.75e9", "100": "12.5e9", "50": "6.25e9"}  # Gbit/s, bytes/s
NETWORK = "network of a GPU (Gbit/s)"


class Broken(Exception):
    """A finding does not hold any more, or cannot be simulated."""


def hold(condition, claim):
    if not condition:
        raise Broken("does not hold: " + claim)


class Runs:
    """The rows of one experiment, by strategy and values of its sweeps."""

    def __init__(self, program, name):
        path = os.path.join("experiments", "findings", name + ".yaml")
        done = subprocess.run([os.path.abspath(program), "compare", path, "--format", "csv"], capture_output=True, text=True, check=False,
                              cwd=os.path.join(HERE, "..", ".."))
        if done.returncode:
            raise Broken("is not simulated: " + done.stderr.strip())
        lines = [line for line in done.stdout.splitlines() if not line.startswith("#")]
        self.rows = {row["strategy"]: row for row in csv.DictReader(lines)}

    def row(self, strategy, **sweep):
        return self.rows["@".join([strategy] + ["%s=%s" % pair for pair in sweep.items()])]

    def ms(self, strategy, **sweep):
        return 1e3 * float(self.row(strategy, **sweep)["step_time_s"])

    def reserved(self, strategy, **sweep):
        return int(self.row(strategy, **sweep)["peak_reserved_bytes"]) / GIB

    def rate(self, strategy, **sweep):
        return float(self.row(strategy, **sweep)["tokens_per_s_per_gpu"])

    def fits(self, strategy, **sweep):
        return self.row(strategy, **sweep)["verdict"] in ("yes", "retries")

    def sent(self, strategy, **sweep):
        """Bytes a GPU sends between nodes in a step, GB."""
        return float(self.row(strategy, **sweep)["sent_between_nodes_bytes_per_gpu"]) / 1e9


def change(new, old):
    """How much longer or shorter, in percent."""
    return 100 * (new / old - 1)


def span(values, form="%.0f"):
    """Text of a range of percentages, "3 to 5 %", or "3 %"."""
    low, high = form % min(values), form % max(values)
    return (low if low == high else "%s to %s" % (low, high)) + " %"


def reshard(runs):
    rates = list(RATES)
    change_of = {s: [change(runs.ms(s, nic_bw=b), runs.ms("full", nic_bw=b)) for b in RATES.values()] for s in ("node", "keep")}
    at = {s: dict(zip(rates, change_of[s])) for s in change_of}
    more = {s: runs.reserved(s, nic_bw="12.5e9") - runs.reserved("full", nic_bw="12.5e9") for s in change_of}
    hold(at["node"]["400"] > 0 and abs(at["node"]["200"]) < 1 and at["node"]["150"] < 0, "keeping the node's shards pays below 200 Gbit/s")
    hold(all(a < 0 for a in change_of["keep"]), "keeping all parameters is faster on every network")
    hold(at["node"]["100"] < -10 and at["node"]["50"] - at["keep"]["50"] < 1, "node's shards gain what keeping all does")
    answer = ("On 16 nodes resharding to the 8 GPUs of a node costs %.1f %% of a step at 400 Gbit/s a GPU, is level at 200 (%+.1f %%) and "
              "saves %.0f %% at 100 and %.0f %% at 50. Keeping all parameters saves %.0f, %.0f and %.0f %% at 400, 100 and 50, but reserves "
              "%.1f GiB more, and the node's shards only %.1f."
              % (at["node"]["400"], at["node"]["200"], -at["node"]["100"], -at["node"]["50"], -at["keep"]["400"], -at["keep"]["100"],
                 -at["keep"]["50"], more["keep"], more["node"]))
    return (answer, "Llama-3.1-8B on 128 H100 · resharding after forward", NETWORK, "step against resharding to all GPUs (%)", rates,
            {"to the 8 GPUs of the node": change_of["node"], "not at all": change_of["keep"]})


def hsdp(runs):
    worlds = [16, 32, 64, 128, 256, 512, 1024]

    def against(other, seq, rate, reduce):
        sweep = {"seq": seq, "nic_bw": RATES[rate], "reduce": reduce}
        return {w: change(runs.ms("hsdp-%d" % w, **sweep), runs.ms("%s-%d" % (other, w), **sweep)) for w in worlds}

    f32 = against("full", 4096, "400", "f32")
    little = against("full", 1024, "400", "f32")
    slow = against("full", 4096, "100", "f32")
    bf16 = against("full", 4096, "100", "bf16")
    sweep = {"seq": 4096, "nic_bw": "50e9"}
    sent = [runs.sent(s, **sweep, reduce=r) for r in ("f32", "bf16") for s in ("hsdp-128", "full-128")]
    node = [v for seq in (1024, 4096) for rate in ("400", "100") for w, v in against("node", seq, rate, "f32").items() if 32 <= w <= 512]
    hold(all(v > 0 for v in f32.values()), "HSDP never wins at 400 Gbit/s with 4,096 tokens and fp32 reduction")
    hold([w for w in worlds if little[w] < 0] == [512, 1024], "HSDP wins from 512 GPUs on with 1,024 tokens")
    hold(slow[16] < 0 < slow[128] and slow[512] > 0, "at 100 Gbit/s HSDP wins on two nodes only")
    hold(bf16[16] < 0 and bf16[512] < 0 and abs(bf16[128]) < 1, "with bf16 reduction HSDP wins on 2 and on 64 nodes")
    hold(all(v > 0 for v in node), "resharding to the node is faster than HSDP from 4 to 64 nodes")
    hold(abs(sent[0] / sent[1] - 1) < 0.05, "HSDP sends as much between nodes with fp32 reduction")
    answer = ("With fp32 reduction HSDP sends as much between nodes as full sharding (%.1f and %.1f GB a GPU and step on 128 GPUs: an all-reduce "
              "carries 4 bytes twice, full sharding 2, 2 and 4), so that with 4,096 tokens a GPU at 400 Gbit/s it is %s slower on 16 to 1,024 "
              "GPUs, and wins only by latency (1,024 tokens: %.0f %% on 512 GPUs, %.0f %% on 1,024) or on two nodes of a slow network (%.0f %% at "
              "100 Gbit/s). With bf16 reduction it sends %.1f GB instead of %.1f, and at 100 Gbit/s wins %.0f %% on 16 GPUs, nothing on 128 and "
              "%.0f %% on 1,024; with fp32, resharding to the node beats it from 32 to 512 GPUs everywhere, by up to %.0f %%."
              % (sent[0], sent[1], span(f32.values()), -little[512], -little[1024], -slow[16], sent[2], sent[3], -bf16[16], -bf16[1024],
                 max(v * 100 / (100 + v) for v in node)))
    return (answer, "Llama-3.1-8B on H100 · HSDP with shards of 8 against full sharding", "GPUs", "step of HSDP against full sharding (%)", worlds,
            {"400 Gbit/s · 4096 tokens · fp32": list(f32.values()), "400 Gbit/s · 1024 tokens · fp32": list(little.values()),
             "100 Gbit/s · 4096 tokens · fp32": list(slow.values()), "100 Gbit/s · 4096 tokens · bf16": list(bf16.values())})


def prefetch(runs):
    first, block, halves = {}, {}, {}
    for rate in ("400", "200", "100"):
        sweep = {"nic_bw": RATES[rate]}
        first[rate] = change(runs.ms("fsdp1-0", **sweep), runs.ms("fsdp1-1", **sweep))
        block[rate] = [change(runs.ms("block-%d" % d, **sweep), runs.ms("block-1", **sweep)) for d in (2, 3, 4)]
        halves[rate] = [change(runs.ms("halves-%d" % d, **sweep), runs.ms("halves-1", **sweep)) for d in (2, 3, 4)]
    worse = {rate: change(runs.ms("halves-2", nic_bw=RATES[rate]), runs.ms("block-1", nic_bw=RATES[rate])) for rate in block}
    deeper = [abs(v) for values in block.values() for v in values]
    hold(min(first.values()) > 10 and max(deeper) < 1, "the first group ahead is worth it, the second nothing")
    hold(all(v[0] < -2 and abs(v[1] - v[0]) < 0.5 for v in halves.values()), "uneven groups gain by the second group ahead only")
    hold(min(worse.values()) > 0, "halves are slower than blocks")
    answer = ("The first group gathered ahead is worth much (FSDP1 without backward prefetch takes %s longer), a second, third or fourth "
              "nothing (%.1f %% at most) as long as a group is a block. Where groups are uneven, attention and MLP apart, the second is worth "
              "%.0f %% at 400 and %.0f %% at 100 Gbit/s and a third nothing more; yet two groups ahead are still %s slower than one of whole blocks."
              % (span(first.values()), max(deeper), -halves["400"][0], -halves["100"][0], span(worse.values())))
    return (answer, "Llama-3.1-8B on 128 H100 · groups gathered ahead", "groups gathered ahead", "step against one group ahead (%)",
            [0, 1, 2, 3, 4],
            {"FSDP1 · a block · 400 Gbit/s": [first["400"], 0, None, None, None], "FSDP1 · a block · 100 Gbit/s": [first["100"], 0, None, None, None],
             "a block · 400 Gbit/s": [None, 0] + block["400"], "a block · 100 Gbit/s": [None, 0] + block["100"],
             "halves · 400 Gbit/s": [None, 0] + halves["400"], "halves · 100 Gbit/s": [None, 0] + halves["100"]})


def embedding(runs):
    models = ["1b", "3b", "8b", "70b"]
    own = {r: {m: change(runs.ms("own-" + m, nic_bw=RATES[r]), runs.ms("root-" + m, nic_bw=RATES[r])) for m in models} for r in ("400", "100")}
    kept = {r: {m: change(runs.ms("kept-" + m, nic_bw=RATES[r]), runs.ms("root-" + m, nic_bw=RATES[r])) for m in ("8b", "70b")}
            for r in ("400", "100")}
    less = {m: runs.reserved("root-" + m, nic_bw="50e9") - runs.reserved("own-" + m, nic_bw="50e9") for m in models}
    kept_less = runs.reserved("root-70b", nic_bw="50e9") - runs.reserved("kept-70b", nic_bw="50e9")
    every = [abs(v) for r in own for v in list(own[r].values()) + list(kept[r].values())]
    hold(max(every) < 2, "time changes little")
    hold(all(own[r][m] > 0 for r in own for m in ("1b", "3b")) and less["1b"] == less["3b"] == 0, "tied models lose and save nothing")
    hold(own["400"]["8b"] < 0 < own["100"]["8b"], "8B gains on the fast network, loses on the slow one")
    hold(less["8b"] > 2 and less["70b"] > 6 and kept_less > less["70b"], "memory is what is saved")
    answer = ("It is a question of memory, not of time: with groups of their own for embedding and head 8B reserves %.1f GiB less and 70B %.1f "
              "(%.1f with the head kept after forward), while no step changes by more than %.1f %%, and 8B gains %.1f %% at 400 Gbit/s and loses "
              "%.1f %% at 100, where the head's second all-gather is no longer hidden. Models that tie the two (1B, 3B) reserve not a byte less and "
              "take %s longer."
              % (less["8b"], less["70b"], kept_less, max(every), -own["400"]["8b"], own["100"]["8b"],
                 span([own[r][m] for r in own for m in ("1b", "3b")], "%.1f")))
    kept_of = {r: [None, None, kept[r]["8b"], kept[r]["70b"]] for r in kept}
    return (answer, "Llama 3 on 128 H100 · embedding and head in groups of their own", "model",
            "step against the root's group (%)", ["1B (tied)", "3B (tied)", "8B", "70B"],
            {"own groups · 400 Gbit/s": list(own["400"].values()), "own groups · 100 Gbit/s": list(own["100"].values()),
             "head kept · 400 Gbit/s": kept_of["400"], "head kept · 100 Gbit/s": kept_of["100"]})


def reduction(runs):
    tokens = [1024, 2048, 4096, 8192]

    def saved(world, rate):
        sweep = {s: {"world": world, "seq": s, "nic_bw": RATES[rate]} for s in tokens}
        return {s: (runs.ms("f32", **sweep[s]) - runs.ms("bf16", **sweep[s]), -change(runs.ms("bf16", **sweep[s]), runs.ms("f32", **sweep[s])))
                for s in tokens}

    node, fast, slow = saved(8, "400"), saved(128, "400"), saved(128, "100")
    middle = saved(128, "200")
    hidden = [v[0] for v in node.values()]
    parts = [1e3 * (float(runs.row("f32", world=8, seq=4096, nic_bw="50e9")[c]) - float(runs.row("bf16", world=8, seq=4096, nic_bw="50e9")[c]))
             for c in ("compute_s", "exposed_communication_s")]
    hold(max(hidden) - min(hidden) < 1, "on a node a constant is saved")
    hold(abs(fast[4096][0] - fast[8192][0]) < 1 and fast[1024][0] > 1.5 * fast[8192][0], "400 Gbit/s: a constant from 4,096 tokens on")
    hold(slow[8192][1] > fast[8192][1] and slow[2048][1] > 20, "a slow network gains most")
    answer = ("bf16 saves %.0f ms a step on one node whatever the batch (%.1f %% at 1,024 tokens a GPU, %.1f %% at 8,192): %.0f ms of computation, "
              "which casts less and runs beside shorter collectives, and %.0f ms of the last reduce-scatter. On 128 GPUs it is %.0f ms at 400 "
              "Gbit/s from 4,096 tokens on, and a large share of the step only where the reduction is exposed: %.0f %% at 2,048 tokens and 200 "
              "Gbit/s, %.0f %% at 4,096 tokens and 100."
              % (sum(hidden) / len(hidden), node[1024][1], node[8192][1], parts[0], parts[1], fast[8192][0], middle[2048][1], slow[4096][1]))
    return (answer, "Llama-3.1-8B on H100 · gradients reduced in bf16 instead of fp32", "tokens of a GPU", "time saved of a step (%)", tokens,
            {"8 GPUs": [v[1] for v in node.values()], "128 GPUs · 400 Gbit/s": [v[1] for v in fast.values()],
             "128 GPUs · 200 Gbit/s": [v[1] for v in middle.values()], "128 GPUs · 100 Gbit/s": [v[1] for v in slow.values()]})


def recompute(runs):
    rates = ["400", "200", "100", "50"]
    batches = {"none": (2, 3), "selective": (4, 5), "full": (10, 11)}  # the largest that fits, and one that does not
    for kind, (fits, fails) in batches.items():
        for rate in rates:
            hold(runs.fits("%s-%d" % (kind, fits), nic_bw=RATES[rate]) and not runs.fits("%s-%d" % (kind, fails), nic_bw=RATES[rate]),
                 "%d is the largest batch of %s" % (fits, kind))
    best = {k: {r: runs.rate("%s-%d" % (k, b), nic_bw=RATES[r]) for r in rates} for k, (b, _) in batches.items()}
    hold(all(runs.fits("whole-4", nic_bw=RATES[r]) for r in rates), "whole parameters fit")
    best["whole"] = {r: runs.rate("whole-4", nic_bw=RATES[r]) for r in rates}
    gain = {k: {r: change(best[k][r], best["none"][r]) for r in rates} for k in best}
    hold(all(max(gain["selective"][r], gain["full"][r]) < 0 for r in ("400", "200")), "recomputation loses on fast networks")
    hold(min(gain["selective"]["100"], gain["full"]["100"]) > 0, "recomputation wins at 100 Gbit/s")
    hold(gain["full"]["50"] > gain["selective"]["50"] > 20, "full recomputation wins most at 50 Gbit/s")
    hold(all(gain["whole"][r] > max(gain["selective"][r], gain["full"][r], 0) for r in ("400", "200", "100"))
         and gain["whole"]["50"] < gain["full"]["50"], "whole parameters win down to 100 Gbit/s")
    answer = ("Recomputation that pays for larger batches (4 selective, 10 full, against 2 without) loses %.0f and %.0f %% of the throughput at "
              "400 Gbit/s a GPU and wins only where communication is exposed: %+.0f and %+.0f %% at 100, %+.0f and %+.0f %% at 50. Down to 100 Gbit/s "
              "the same memory is better spent on whole parameters and gradients over four micro-batches and one reduction: %+.0f %% at 400, "
              "%+.0f %% at 200, %+.0f %% at 100."
              % (-gain["selective"]["400"], -gain["full"]["400"], gain["selective"]["100"], gain["full"]["100"], gain["selective"]["50"],
                 gain["full"]["50"], gain["whole"]["400"], gain["whole"]["200"], gain["whole"]["100"]))
    return (answer, "Llama-3.1-8B on 128 H100 · what 80 GB are spent on", NETWORK, "tokens a second and GPU", rates,
            {"no recomputation · batch 2": list(best["none"].values()), "selective · batch 4": list(best["selective"].values()),
             "full · batch 10": list(best["full"].values()), "whole parameters · 4 x batch 1": list(best["whole"].values())})


FINDINGS = {f.__name__: f for f in (reshard, hsdp, prefetch, embedding, reduction, recompute)}


def write(program, to, name):
    answer, title, x, y, ticks, series = FINDINGS[name](Runs(program, name))
    if any(len(values) != len(ticks) for values in series.values()):
        raise Broken("a line of the picture has not %d points" % len(ticks))
    with open(os.path.join(to, name + ".csv"), "w", encoding="utf-8") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow([title, x, y, len(series)])
        out.writerow([x] + list(series))
        for i, tick in enumerate(ticks):
            out.writerow([tick] + ["" if values[i] is None else "%.2f" % (values[i] + 0.0) for values in series.values()])
    with open(os.path.join(to, name + ".md"), "w", encoding="utf-8") as file:
        file.write(textwrap.fill(re.sub(r"-(0\.?0* )", r"\1", answer), 120, break_long_words=False, break_on_hyphens=False) + "\n")


def main(program, to, *names):
    for name in names:
        try:
            write(program, to, name)
        except Broken as why:
            sys.exit("experiments/findings: %s: %s" % (name, why))


if __name__ == "__main__":
    main(*sys.argv[1:])
