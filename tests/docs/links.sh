#!/bin/sh
# What papers name exists: relative links of every Markdown file with their anchors, paths from the top of the tree
# in backquotes, and Markdown files that sources and scripts name. Every folder of tests/layers.tsv has a README, and
# no folder holds more than 25 files. One line for each that is wrong.
#
# Usage: tests/docs/links.sh [TREE]
set -u
here=$(cd "$(dirname "$0")" && pwd)
cd "${1:-$here/../..}" || exit 2
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
bad=0

complain() {
    bad=$((bad + 1))
    printf 'docs: %s\n' "$*" >&2
}

tops='engine sim exec experiments plots tests'
# shellcheck disable=SC2086
find $tops -name __pycache__ -prune -o -print >"$work/tree"
for file in * .ci .ci/* .clang-tidy .clang-format; do # what else stands at the top
    [ -e "$file" ] && echo "$file"
done >>"$work/tree"
grep '\.md$' "$work/tree" | sort -u >"$work/papers"
# shellcheck disable=SC2086
find $tops .ci CMakeLists.txt -type f \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cpp' -o -name '*.sh' -o \
    -name '*.py' -o -name '*.txt' -o -name '*.yaml' -o -name '*.tsv' \) >"$work/sources"

xargs awk -v list="$work/tree" -v sources="$work/sources" '
function complain(text) {
    print "docs: " text >"/dev/stderr"
    bad++
}
function fold(path,   n, part, i, k, out) { # a/b/../c becomes a/c
    n = split(path, part, "/")
    k = 0
    for (i = 1; i <= n; i++) {
        if (part[i] == "" || part[i] == ".")
            continue
        if (part[i] == ".." && k > 0)
            k--
        else
            part[++k] = part[i]
    }
    out = k ? part[1] : "."
    for (i = 2; i <= k; i++)
        out = out "/" part[i]
    return out
}
function exists(path) {
    return path == "." || path in tree
}
function slug(text) { # as hosts of Markdown make anchors of headings
    gsub(/`/, "", text)
    text = tolower(text)
    gsub(/[^a-z0-9 _-]/, "", text)
    gsub(/ /, "-", text)
    return text
}
BEGIN {
    while ((getline path <list) > 0)
        tree[path] = 1
}
FNR == 1 {
    code = 0
    folder = FILENAME
    if (!sub(/\/[^\/]*$/, "", folder))
        folder = "."
}
/^ *```/ { code = !code; next }
code { next }
/^#+ / {
    text = $0
    sub(/^#+ +/, "", text)
    anchors[FILENAME "#" slug(text)] = 1
}
{
    line = $0
    while (match(line, /\]\([^) ]*\)/)) {
        target = substr(line, RSTART + 2, RLENGTH - 3)
        line = substr(line, RSTART + RLENGTH)
        if (target ~ /^(https?|mailto):/)
            continue
        anchor = ""
        if (index(target, "#")) {
            anchor = substr(target, index(target, "#") + 1)
            target = substr(target, 1, index(target, "#") - 1)
        }
        path = target == "" ? FILENAME : fold(folder "/" target)
        if (!exists(path))
            complain(FILENAME ":" FNR ": the link " target " leads nowhere")
        else if (anchor != "")
            wanted[FILENAME ":" FNR] = path "#" anchor
    }
    line = $0
    while (match(line, /`(engine|sim|exec|experiments|plots|tests)\/[A-Za-z0-9_.\/-]*`/)) {
        path = substr(line, RSTART + 1, RLENGTH - 2)
        line = substr(line, RSTART + RLENGTH)
        if (!exists(fold(path)))
            complain(FILENAME ":" FNR ": there is no " path)
    }
}
END {
    for (from in wanted)
        if (!(wanted[from] in anchors))
            complain(from ": there is no heading for " wanted[from])
    while ((getline file <sources) > 0) {
        n = 0
        while ((getline line <file) > 0) {
            n++
            while (match(line, /(engine|sim|exec|experiments|tests)\/[A-Za-z0-9_.\/-]*\.md/)) {
                path = substr(line, RSTART, RLENGTH)
                line = substr(line, RSTART + RLENGTH)
                if (!exists(path))
                    complain(file ":" n ": there is no " path)
            }
        }
        close(file)
    }
    exit bad ? 1 : 0
}' <"$work/papers" || bad=1

awk -F '\t' '$1 == "folder" { print $2 }' tests/layers.tsv >"$work/folders"
while read -r folder; do
    [ -f "$folder/README.md" ] || complain "$folder has no README.md"
    files=$(find "$folder" -maxdepth 1 -type f | grep -c .)
    [ "$files" -le 25 ] || complain "$folder holds $files files; 25 are allowed"
done <"$work/folders"
[ $bad = 0 ] || exit 1
printf '%s papers, %s folders\n' "$(grep -c . "$work/papers")" "$(grep -c . "$work/folders")"
