#!/usr/bin/env bash
# Create the virtual environment in $1 and install Outlast into it, editable, with all extras.
# Run by the Makefile when pyproject.toml is newer than the last set-up; needs Python 3.11+.
set -euo pipefail

venv=${1:?usage: tools/setup.sh VENV_FOLDER}
cd "$(dirname "$0")/.."

is_recent() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }
has_venv() { "$1" -c 'import venv, ensurepip' 2>/dev/null; }

# The first interpreter that is recent enough, best one that can also make an environment.
python='' recent=''
for candidate in ${PYTHON:+"$PYTHON"} python3.13 python3.12 python3.11 python3; do
    is_recent "$candidate" || continue
    recent=${recent:-$candidate}
    if has_venv "$candidate"; then
        python=$candidate
        break
    fi
done

if [[ -z $recent ]]; then
    echo "Outlast needs Python 3.11 or newer; found $(python3 --version 2>/dev/null || echo none)." >&2
    echo "On Debian or Ubuntu:  sudo apt-get install -y python3.11 python3.11-venv" >&2
    echo "Installed elsewhere:  make PYTHON=/path/to/python3 ..." >&2
    exit 1
fi
if [[ -z $python ]]; then
    version=$("$recent" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
    echo "$recent has no venv module with pip (ensurepip). Install it, then run make again:" >&2
    echo "    sudo apt-get install -y $version-venv" >&2
    exit 1
fi

# A half-made environment, or one whose interpreter was removed, is made anew.
if ! is_recent "$venv/bin/python" || ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    echo "Creating $venv with $("$python" --version)"
    "$python" -m venv --clear "$venv"
fi
echo "Installing Outlast and its tools into $venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check -e '.[dev]'
