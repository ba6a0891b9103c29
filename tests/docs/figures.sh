#!/usr/bin/env bash
# Figures that README and guide state and that a file or a command of the tree gives are the ones that it gives today: rules,
# published runs and peaks, errors of validation by class, instructions of a step; each other figure with a unit is in a
# transcript that is run, or has a source (facts.tsv); the picture of validation.md shows what the program predicts; and each
# folder of recordings says first that no GPU made them.
set -u
: "${TESSERA:?the program}" "${TSR_SOURCE_DIR:?the source tree}"
cd "$TSR_SOURCE_DIR" || exit 1
rules=$(grep -c '^R[0-9]' tests/rules/rules.tsv)
step=$("$TESSERA" program experiments/small/llama.yaml --strategy fsdp | sed -n 's/^# instructions //p') || exit 1
version=$("$TESSERA" --version | sed 's/^tessera //')
experiments/h200/predict.py --program "$TESSERA" --check || exit 1
bad=0
experiments/validation/picture.sh --check || bad=1
python3 tests/docs/facts.py || bad=1
python3 - "$rules" "$step" "$version" <<'P'
import csv, glob, json, re, sys
sys.path.insert(0, "experiments/validation")
sys.dont_write_bytecode = True
from errors import quantile
rules, step, version = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
bad = []
def text(path):
    return open(path, encoding="utf-8").read()
def stated(path, pattern, want):
    found = re.findall(pattern, text(path))
    if not found:
        bad.append(f"{path}: nothing is stated as {pattern}; expected {want}")
    bad.extend(f"{path}: {f} is stated, {want} is right" for f in found if f != str(want))
stated("README.md", r"\[(\d+) rules\]", rules)
stated("experiments/guide/running.md", r"1,483 and ([\d,]+) here", f"{step:,}")
stated("experiments/guide/login-node.md", r"tessera-([\d.]+)-x86_64", version)
classes = {c["class"]: c for c in json.load(open("experiments/validation/errors.json"))["classes"]}
mpt = [c for c in classes.values() if "llm-foundry" in (c["stack"] or "")]
stated("experiments/guide/validation.md", r"of (\d+) published MPT runs", sum(c["rows"] for c in mpt))
# the table "Figures": the label of a row, and its class
rows = {"- A100 40 GB": "fsdp1 on a100-sxm4-40g, more than one node, llm-foundry-2023-05",
        "- A100 80 GB": "fsdp1 on a100-sxm4-80g, more than one node, llm-foundry-2023-05",
        "- H100 80 GB": "fsdp1 on h100-sxm5-80g, more than one node, llm-foundry-2023-10",
        "fms-fsdp, 128 A100": "fsdp1 on a100-sxm4-80g, more than one node, fms-fsdp",
        "FSDP1 baselines (overlap), `ot017` fitted": "fsdp1 on a100-sxm4-80g, more than one node, transformers-fsdp1",
        "FSDP paper, GPT-175B on 512 A100": "fsdp1 on a100-sxm4-80g, more than one node, fsdp-2023"}
wanted = {label: classes[name] for label, name in rows.items()}
# rows over several classes: of the figures that are kept beside the picture
drawn = [r for r in csv.DictReader(open("experiments/validation/predicted/validate.csv", encoding="utf-8"))
         if r["quantity"] == "tokens_per_s_per_gpu" and r["status"] == "predicted" and r["duplicate"] == "0"]
def summary(chosen):
    errors = sorted(float(r["error"]) for r in chosen)
    return {"rows": len(errors), "median": quantile(errors, 0.5), "p90": quantile(errors, 0.9), "max": errors[-1]}
many = [r for r in drawn if int(r["n_gpus"]) > 8]
wanted["llm-foundry, more than 8 GPUs (validation)"] = summary(many)
wanted["the same without `lf179`"] = summary([r for r in many if r["row_id"] != "lf179"])
wanted["llm-foundry, 8 GPUs (about 40 % of them fitted), fp8 included"] = summary([r for r in drawn if int(r["n_gpus"]) <= 8])
for label, c in wanted.items():
    want = [str(c["rows"])] + [f"{100 * c[k]:.1f} %" if k != "p90" or c["rows"] > 2 else "" for k in ("median", "p90", "max")]
    line = re.search(r"^\| " + re.escape(label) + r" \|(.*)$", text("experiments/guide/validation.md"), re.M)
    found = [cell.strip() for cell in line[1].split("|")][:4] if line else None
    if found != want:
        bad.append(f"experiments/guide/validation.md: {label}: {found} is stated, {want} is right")
# every peak of a real GPU stands in the README, those that disagree, too
peaks = set(re.findall(r"^\| \S+ \| peak reserved \| ([\d.]+) GiB \| ([\d.]+) \|", text("experiments/published-peaks/peaks.md"), re.M))
found = {(b, a) for a, b in re.findall(r"(\d+\.\d+) / (\d+\.\d+)", text("README.md"))}
if not peaks or peaks != found:
    bad.append(f"README.md: peaks, measured and predicted: {sorted(found)} are stated, {sorted(peaks)} are right")
folders = glob.glob("tests/golden*/README.md")
if len(folders) < 7:
    bad.append(f"only {len(folders)} folders of recordings have a README")
bad.extend(f"{path}: its first lines do not say that it was recorded without a GPU" for path in folders
           if "**Recorded without a GPU" not in text(path).split("\n\n")[1])
for line in bad:
    print("FAILED:", line)
sys.exit(bool(bad))
P
[ $? = 0 ] && exit $bad
exit 1
