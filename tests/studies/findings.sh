#!/usr/bin/env bash
# Findings: figures, pictures and words of experiments/findings are those of today's program, two in the short form and all in
# the long one; another figure, other data, another picture and a sentence that is no longer true are noticed. Exit 77: no python3.
# shellcheck source=tests/cli/_common.sh
. "$TSR_SOURCE_DIR/tests/cli/_common.sh"
command -v python3 >/dev/null || exit 77
findings=$TSR_SOURCE_DIR/experiments/findings

set -- embedding # reshard is below
thorough && set --
checks=$((checks + 1))
TESSERA=$TESSERA "$findings/make.sh" --check "$@" >"$out" 2>"$err" || complain "make.sh --check"

# Every experiment, every line of findings.py and every mark in README.md is of the same six.
checks=$((checks + 1))
for name in "$findings"/*.yaml; do
    name=$(basename "$name" .yaml)
    grep -q "^<!-- $name, by make.sh -->" "$findings/README.md" || complain "README.md has no answer of $name"
    grep -q "^def $name(runs):" "$findings/findings.py" || complain "findings.py has no $name"
    sed -n 's/^\[ \$# -gt 0 \] || set -- //p' "$findings/make.sh" | grep -qw "$name" || complain "make.sh does not make $name"
done

# A copy in which a figure, a point and a picture are others.
mkdir -p "$tmp/tree/experiments/findings"
ln -s "$TSR_SOURCE_DIR/plots" "$tmp/tree/plots"
for part in clusters models stacks; do
    ln -s "$TSR_SOURCE_DIR/experiments/$part" "$tmp/tree/experiments/$part"
done
copy=$tmp/tree/experiments/findings
cp "$findings"/*.* "$copy"
sed -i 's/ costs [0-9.]* % of a step/ costs 9.9 % of a step/' "$copy/README.md"
sed -i 's/^400,[0-9.]*/400,9.90/' "$copy/reshard.csv"
printf x >>"$copy/hsdp.png"
checks=$((checks + 1))
TESSERA=$TESSERA "$copy/make.sh" --check reshard >"$out" 2>"$err"
[ $? = 1 ] || complain "a finding with other figures passes"
[ "$(grep -c '^-[^-]' "$out")" = 4 ] || complain "what differs is not what was changed: $(grep '^-[^-]' "$out")"
has "$out" "costs 9.9 %" "-400,9.90" "-experiments/findings/hsdp.png: " "out of date: run experiments/findings/make.sh"

# A sentence that does not hold is no finding.
sed -i 's/reshard_after_forward: 8/reshard_after_forward: null/' "$copy/reshard.yaml"
checks=$((checks + 1))
TESSERA=$TESSERA "$copy/make.sh" reshard >"$out" 2>"$err"
[ $? = 1 ] && [ "$(wc -l <"$err")" = 1 ] || complain "a finding that does not hold is made"
has "$err" "reshard: does not hold: keeping the node's shards pays below 200 Gbit/s"
echo 'stack: none' >"$copy/embedding.yaml"
TESSERA=$TESSERA "$copy/make.sh" embedding >"$out" 2>"$err"
[ $? = 1 ] && [ "$(wc -l <"$err")" = 1 ] || complain "an experiment that is refused makes a finding"
has "$err" "embedding: is not simulated: " "embedding.yaml:1"
finish
