#!/bin/sh
# Names that are code in some language, in every place that a name can come from (hostile.py). Exit status 77: no python3.
command -v python3 >/dev/null || exit 77
exec python3 "$TSR_SOURCE_DIR/tests/code/hostile.py"
