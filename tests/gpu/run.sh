#!/bin/sh
# Runs the tests and benchmarks that need a GPU, offline.
#
# usage: tests/gpu/run.sh [FOLDER OF WHEELS]
#
# The wheels are installed into a folder of their own; packages that are there already need
# none. Prints one table at the end. The exit code is that of the tests.
set -u
cd "$(dirname "$0")/../.." || exit 1
python=${PYTHON:-python3}
site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT
if [ $# -gt 0 ]; then
    "$python" -m pip install -q --no-index --no-deps --no-compile --target "$site" "$1"/*.whl || exit 1
fi
unset PYTHONDONTWRITEBYTECODE  # or each server that is started compiles everything anew
export PYTHONPATH="$PWD/src:$site" PYTHONUNBUFFERED=1 PYTHONPYCACHEPREFIX="$site/cache"

code=0
# Not the settings of all tests: they need a database that need not be here.
"$python" -m pytest -q -p no:cacheprovider --confcutdir=tests/gpu tests/gpu || code=$?
# What sessions promise, promised on the GPU too.
TESTED_DEVICE=cuda "$python" -m pytest -q -p no:cacheprovider --confcutdir=tests/resilience \
    tests/resilience/test_stable_addresses.py tests/resilience/test_sticky_errors.py \
    tests/resilience/test_ordered_memory.py tests/resilience/test_landings.py || code=$?
TESTED_DEVICE=cuda "$python" -m pytest -q -p no:cacheprovider --confcutdir=tests/integration \
    tests/integration/test_ordered_memory.py tests/integration/test_pinned_memory.py || code=$?
"$python" benchmarks/gpu/bench_gpu.py || code=1
exit $code
