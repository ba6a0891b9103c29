#!/bin/sh
# The closed forms of tests/golden-memory/README.md over random scenarios. Exit 77: skipped, there is
# no python3.
command -v python3 >/dev/null || exit 77
exec python3 "$TSR_SOURCE_DIR/tests/conformance/closed_forms.py" --tessera "$TESSERA"
