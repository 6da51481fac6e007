#!/bin/sh
# Every program and library below the folders finds the libraries that it was linked to: a
# run-time stage can drop what a development stage had.
#
# usage: libraries.sh MPI_ROUTE FOLDER...
#
# What the host brings is not looked for: the GPU driver's libraries, and the MPI's with the
# route `host`.

route=$1
shift
host='libcuda\.so|libnvidia-|libcudadebugger'
[ "$route" = host ] && host="$host|libmpi|libmpich"

command -v ldd >/dev/null || {
    echo "there is no ldd in the image to ask"
    exit 1
}

is_elf() {
    [ "$(head -c 4 "$1" 2>/dev/null | od -An -tx1 | tr -d ' ')" = 7f454c46 ]
}

found=$(mktemp) || exit 1
trap 'rm -f "$found"' EXIT
find "$@" -xdev -type f \( -perm -100 -o -name '*.so*' \) >"$found" 2>/dev/null

count=0 missing=
while read -r file; do
    is_elf "$file" || continue
    count=$((count + 1))
    lost=$(ldd "$file" 2>/dev/null | grep 'not found' | grep -Ev "$host" | awk '{print $1}')
    for library in $lost; do
        missing="$missing $file needs $library;"
    done
done <"$found"

if [ -n "$missing" ]; then
    echo "not in the image:$missing"
    exit 1
fi
if [ "$count" -eq 0 ]; then
    echo "no program and no library below $*: nothing was looked at"
    exit 1
fi
echo "$count programs and libraries find all that they are linked to"
