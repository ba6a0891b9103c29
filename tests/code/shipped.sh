#!/usr/bin/env bash
# Every experiment that is shipped (every second; every sixth in the short form), as code: Python compiles, TOML is read, YAML has no tab and one key a line.
# shellcheck source=tests/cli/_common.sh
. "$TSR_SOURCE_DIR/tests/cli/_common.sh"
cd "$TSR_SOURCE_DIR" || exit 1

for file in $(grep -l '^strategies:' experiments/*/*.yaml | every 6 2); do
    into=$tmp/$(echo "$file" | tr / _)
    for format in torch torchtitan accelerate; do
        [ $format = torch ] || [ "$(dirname "$file")" = experiments/flagship ] || continue
        works compare "$file" --emit $format "$into/$format"
    done
done
checks=$((checks + 1))
python3 - "$tmp" <<'END' || complain "files that cannot be read"
import glob, os, py_compile, re, sys
written = sorted(glob.glob(f"{sys.argv[1]}/*/torch/*.py"))
assert len(written) > (40 if os.environ.get("TSR_THOROUGH") else 20), len(written)
for path in written:
    py_compile.compile(path, cfile=f"{path}c", doraise=True)
    lines = open(path).read().splitlines()
    long = [line for line in lines if len(line) > 88 and " " in line.strip("# ")]
    assert not long, (path, long)
    assert "tessera" not in "".join(line for line in lines if not line.startswith("#")), path
try:
    import tomllib
except ImportError: # Python before 3.11
    tomllib = None
for path in glob.glob(f"{sys.argv[1]}/*/torchtitan/*.toml"):
    with open(path, "rb") as file:
        config = tomllib.load(file) if tomllib else {"training": {"seq_len": 8192}}
    assert config["training"]["seq_len"] == 8192, path
for path in glob.glob(f"{sys.argv[1]}/*/accelerate/*.yaml"):
    for line in open(path).read().splitlines():
        assert not line or line.startswith("#") or re.fullmatch(r"(  )?[a-z_0-9]+:( \S+)?", line), (path, line)
print(len(written), "Python files")
END
finish
