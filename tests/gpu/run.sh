#!/bin/sh
# Runs the tests and benchmarks that need a GPU, offline.
#
# usage: tests/gpu/run.sh [--tests | --bench] [OPTIONS] [FOLDER OF WHEELS]
#
#   --tests, --bench   only one of the two halves
#   -k EXPR            only the tests that match, as pytest has it
#   --jobs N           test files at a time
#   --limit SECONDS    tests that are not over by then are ended
#   --timeout SECONDS  of a single test that does not say how long it takes
#
# The wheels are installed into a folder of their own; packages that are there already need
# none. TESTED_DEVICE=emulated runs the tests without a GPU, as far as they can do without.
# Tests end with a table of what passed and failed, benchmarks with one of the figures. The
# exit code is 0 if everything passed.
set -u
cd "$(dirname "$0")/../.." || exit 1
python=${PYTHON:-python3}
site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT
tests=1 bench=1 wheels="" options=""
while [ $# -gt 0 ]; do
    case $1 in
    --tests) bench="" ;;
    --bench) tests="" ;;
    -k | --jobs | --limit | --timeout)
        [ $# -gt 1 ] || { echo "$1 needs a value" >&2 && exit 2; }
        # Kept apart by newlines: an expression has spaces in it.
        options="$options$1
$2
" && shift ;;
    -*) echo "unknown option $1" >&2 && exit 2 ;;
    *) wheels=$1 ;;
    esac
    shift
done
if [ -n "$wheels" ]; then
    "$python" -m pip install -q --no-index --no-deps --no-compile --target "$site" "$wheels"/*.whl ||
        exit 1
fi
unset PYTHONDONTWRITEBYTECODE  # or each server that is started compiles everything anew
export PYTHONPATH="$PWD/src:$PWD/tests:$site" PYTHONUNBUFFERED=1 PYTHONPYCACHEPREFIX="$site/cache"
export TESTED_DEVICE="${TESTED_DEVICE:-cuda}"

code=0
if [ -n "$tests" ]; then
    IFS='
'
    # shellcheck disable=SC2086 # one word a line
    "$python" tests/gpu/suite.py $options || code=$?
    unset IFS
fi
if [ -n "$bench" ]; then
    "$python" benchmarks/gpu/bench_gpu.py || code=1
fi
exit $code
