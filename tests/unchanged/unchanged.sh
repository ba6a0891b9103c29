#!/usr/bin/env bash
# Compares what the program says with what was recorded: every instruction of small programs, the texts of help and of resolved
# files, and in the long form every answer of every study. A change that is meant to change nothing must pass; a change that is
# meant to change something records anew, and its diff shows how much it changed.
#
# Usage: unchanged.sh [--write] [--keep FOLDER]
#   --write: record anew, all of it
#   --keep FOLDER: leave the texts themselves there, so that two builds can be compared with `diff -r`
# Environment: TESSERA, the program; TSR_SOURCE_DIR, the tree; TSR_THOROUGH: everything (default: an eighth of the programs,
# and no answers).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
export TESSERA=${TESSERA:-$here/../../build/tessera}
[ -x "$TESSERA" ] || exit 77
TREE=$(cd "$here/../.." && pwd)
export TREE
cd "$here" # files are named as seen from here, since errors name them
write=false keep=''
while [ $# -gt 0 ]; do
    case $1 in
    --write) write=true ;;
    --keep) keep=${2:?a folder} && shift ;;
    *) echo "unchanged.sh: unknown option $1; allowed: --write, --keep FOLDER" >&2 && exit 2 ;;
    esac
    shift
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
texts=${keep:-$work/texts}
mkdir -p "$texts"
texts=$(cd "$texts" && pwd)
export TMPDIR=$work
unset COLUMNS
export NO_COLOR=1

# Options that change what a step emits. What a strategy refuses is recorded with its error.
options=(
    plain
    "accumulate --set accumulation.steps=3 --set accumulation.mode=no_reduce"
    "recompute --set checkpoint=selective_op --set clip=true --set optimizer.variant=fused"
    "compile --set dialect=compile --set compile.components=[model,loss] --set optimizer.state=bf16"
    "full --set precision.param=none --set precision.reduce=none --set loss.chunks=4 --set loss.read=true"
    "fused --set dialect=fused --set attention=math --set checkpoint=2 --set sync_each_step=step"
    "sgd --set optimizer.name=sgd --set allocator.expandable_segments=true --set save=full_rank0 --set load=full_rank0"
)
phases=(init load save eval "0" "2" "2 --rank 1")

# item NAME ARGUMENT...: one line of the list of work: a text and the command that makes it.
item() {
    printf '%s\t' "$1"
    shift
    printf '%s ' "$@"
    printf '\n'
}

programs() {
    local strategy option phase
    for strategy in $(sed -n 's/^  \([a-z0-9-]*\): {.*/\1/p' strategies.yaml); do
        for option in "${options[@]}"; do
            for phase in "${phases[@]}"; do
                item "programs/$strategy/${option%% *}/${phase// --rank /-rank-}" program strategies.yaml --strategy "$strategy" \
                    --iteration "$phase" "$([[ $option != *' '* ]] || echo "${option#* }")"
            done
        done
    done
}

words() {
    local word file
    for word in '' all keys man bash zsh fish $("$TESSERA" help all | sed -n 's|^  \([a-z]*\)  *[a-z].*|\1|p' | grep -v tessera); do
        item "texts/help/${word:-first}" help "$word"
    done
    item texts/states inspect --states
    while read -r file; do
        item "texts/resolved/${file//\//+}" compare "../../experiments/$file" --print-config
    done < <(cd ../../experiments && find . -name '*.yaml' -print0 | xargs -0 grep -l '^strategies:' | sed 's|^\./||' | LC_ALL=C sort)
}

answers() { # --wide: where a line is broken depends on how long the names of files are
    local format flagship=../../experiments/flagship/dgx-h100-8.yaml
    for format in json text; do
        item "answers/inspect.$format" inspect strategies.yaml --format "$format" --wide
        item "answers/explain.$format" explain "$flagship" --strategy fsdp --time --format "$format" --wide
        item "answers/diff.$format" diff "$flagship:fsdp" "$flagship:fsdp-checkpoint" --format "$format" --wide
    done
    for format in json text csv; do
        item "answers/overlap.$format" overlap "$flagship" --strategy fsdp --format "$format" --wide
    done
    for format in md csv json; do
        item "answers/compare.$format" compare strategies.yaml --format "$format" --wide --notes
        item "answers/compare-wide.$format" compare "$flagship" --format "$format" --wide
        item "answers/sim.$format" sim "$flagship" --strategy fsdp --format "$format" --wide
        item "answers/plan.$format" plan strategies.yaml --strategy fsdp --format "$format" --wide --top 20
        item "answers/validate.$format" validate ../../experiments/validation/other_training.csv --format "$format" --wide
        item "answers/goodput.$format" goodput ../../experiments/flagship/h100-128.yaml --strategy fsdp --format "$format" --wide
        item "answers/jobs.$format" jobs ../../experiments/topologies/two-jobs.yaml --format "$format" --wide
    done
    for format in md csv; do
        item "answers/collectives.$format" collectives dgx-h100-2 --format "$format" --wide
    done
    for format in torch accelerate torchtitan; do
        item "answers/emit-$format" compare strategies.yaml --emit "$format" @FOLDER --wide
    done
}

# Makes the texts of a list of work, as many at a time as there are cores. Most items are programs of some milliseconds, so that a
# shell makes many of them, and starts nothing else for each.
make_texts() {
    # shellcheck disable=SC2016 # expanded by the inner shell
    TEXTS=$texts xargs -a "$1" -d '\n' -n 20 -P "${TSR_JOBS:-$(nproc)}" bash -c '
        for line in "$0" "$@"; do
            name=${line%%$'"'\\t'"'*} status=0 folder=""
            read -ra words <<<"${line#*$'"'\\t'"'}"
            [ -d "$TEXTS/${name%/*}" ] || mkdir -p "$TEXTS/${name%/*}"
            [[ $line != *@FOLDER* ]] || folder=$(mktemp -d)
            "$TESSERA" "${words[@]//@FOLDER/$folder}" >"$TEXTS/$name" 2>"$TEXTS/$name.stderr" </dev/null || status=$?
            # A clock may be among the remarks of a study, so they count for refusals alone.
            said=
            [ "$status" = 0 ] || said=$(<"$TEXTS/$name.stderr")
            if [ -n "$folder" ]; then
                # Comments of written code are broken where the names of files end.
                find "$folder" -type f | LC_ALL=C sort | xargs -r cat | sed -z "s/\n#   */ /g" >>"$TEXTS/$name"
                sed -i "s|$folder|FOLDER|g" "$TEXTS/$name"
                said=${said//"$folder"/FOLDER}
                rm -rf "$folder"
            fi
            [ "$status" = 0 ] || printf "%s\n" "status $status" "$said" >>"$TEXTS/$name"
        done'
    find "$texts" -name '*.stderr' -delete
    # Files of the tree are named in full; a plan says how long it took.
    find "$texts" -type f -print0 | xargs -0 sed -i -e "s|$TREE|TREE|g" -e 's/_wall_s": [0-9.e+-]*/_wall_s": 0/'
}

# One line a text, for programs one line a strategy and option with the phases beside each other.
hashes() {
    (cd "$texts" && find "$1" -type f | LC_ALL=C sort | xargs sha256sum) | awk -v programs="$([ "$1" = programs ] && echo 1)" '
        { name = $2; hash = substr($1, 1, 12) }
        programs { phase = name; sub(/\/[^\/]*$/, "", name); sub(/.*\//, "", phase); hash = phase "=" hash }
        { if (!(name in line)) order[++n] = name; line[name] = line[name] "\t" hash }
        END { for (i = 1; i <= n; i++) print order[i] line[order[i]] }'
}

simgrid=$(pkg-config --modversion simgrid 2>/dev/null || echo none)
kinds=(programs texts)
if $write || { [ -n "${TSR_THOROUGH:-}" ] && grep -q "^# SimGrid $simgrid\$" answers.tsv; }; then
    kinds+=(answers)
fi
bad=0 n=0
for kind in "${kinds[@]}"; do
    case $kind in
    programs) programs ;;
    texts) words ;;
    answers) answers ;;
    esac >"$work/all"
    if [ "$kind" = programs ] && ! $write && [ -z "${TSR_THOROUGH:-}" ]; then
        awk -v phases="${#phases[@]}" 'int((NR - 1) / phases) % 8 == 0' "$work/all" >"$work/list"
    else
        cp "$work/all" "$work/list"
    fi
    make_texts "$work/list"
    hashes "$kind" >"$work/hashes"
    if $write; then
        { [ "$kind" != answers ] || echo "# SimGrid $simgrid"; cat "$work/hashes"; } >"$kind.tsv"
        continue
    fi
    while IFS= read -r line; do
        n=$((n + 1))
        grep -qxF -- "$line" "$kind.tsv" && continue
        bad=$((bad + 1))
        echo "FAILED: ${line%%$'\t'*} is not what was recorded"
    done <"$work/hashes"
done
if $write; then
    wc -l programs.tsv texts.tsv answers.tsv
    exit 0
fi
echo "$n texts, $bad changed"
[ "$bad" = 0 ] || {
    echo "To see how: unchanged.sh --keep OLD with the program before, --keep NEW with the one after, diff -r OLD NEW."
    echo "If the change is meant: unchanged.sh --write."
    exit 1
}
