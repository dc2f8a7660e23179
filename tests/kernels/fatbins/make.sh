#!/usr/bin/env bash
# Make the fatbins beside this script anew. Needs the tools of the package nvidia-cuda-nvcc 13.0:
# $1 is the folder that holds ptxas and fatbinary.
set -euo pipefail
tools=${1:?usage: make.sh TOOLS_FOLDER}
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

for arch in 75 80 90; do
    sed "s/@ARCH@/$arch/g" "$here/which.ptx.in" > "which_$arch.ptx"
done
"$tools/ptxas" -arch sm_75 -o which_75.cubin which_75.ptx

image() { echo "--image3=kind=$1,sm=$2,file=which_$2.$3"; }
for mode in none speed size; do # not packed, LZ4, zstd
    "$tools/fatbinary" --64 --create="$here/$mode.fatbin" --compress-mode=$mode \
        "$(image elf 75 cubin)" "$(image ptx 75 ptx)" "$(image ptx 80 ptx)" "$(image ptx 90 ptx)"
done
"$tools/fatbinary" --64 --create="$here/all-speed.fatbin" --compress-all --compress-mode=speed \
    "$(image elf 75 cubin)" "$(image ptx 80 ptx)"
"$tools/fatbinary" --64 --create="$here/cubin.fatbin" "$(image elf 75 cubin)"
