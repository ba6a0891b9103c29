"""Fails if what `tessera calibrate` wrote for two ranks is not whole: every number has its source, nothing names a path of
the machine. Usage: calibrated.py FOLDER NAME MOST_SECONDS KERNEL...   MOST_SECONDS: of a call of the host"""
import json
import sys

folder, name, most, *wanted = sys.argv[1:]
files = {k: json.load(open(f"{folder}/{k}-{name}.json")) for k in ("gpu", "kernels", "node", "cluster")}


def sources(value):
    if isinstance(value, dict):
        if "source" in value:
            assert value["source"].startswith("measured on ") and "tessera calibrate" in value["source"], value
        for v in value.values():
            sources(v)
    elif isinstance(value, list):
        for v in value:
            sources(v)
    elif isinstance(value, str):
        assert "/" not in value, value


for f in files.values():
    sources(f)
kernels = {k["kernel"] for k in files["kernels"]["measured"]}
assert set(wanted) <= kernels, kernels
assert all(k["source"] and k["runs"] for k in files["kernels"]["measured"])
assert all(0 < files["gpu"]["host"][k] < float(most) for k in ("launch_s", "event_s", "alloc_s")), files["gpu"]["host"]
collectives = files["node"]["collectives"]
assert {c["kind"] for c in collectives} == {"all_gather", "reduce_scatter", "all_reduce", "broadcast"}
assert {c["ranks"] for c in collectives} == {2} and files["node"]["gpus_per_node"] == 2
