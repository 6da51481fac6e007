#!/bin/sh
# The program, and every library of CUDA that the loader can find, are whole: what they are linked
# to is in the image. The driver's own library is the host's, and may be missing.
#
# usage: cuda-libraries.sh PROGRAM

program=$1
names='cudart|cublas|cufft|curand|cusolver|cusparse|cudnn|nvrtc|nvJitLink|nvToolsExt|npp|nccl'
libraries=$(PATH=$PATH:/usr/sbin:/sbin ldconfig -p |
    sed -n -E "s/^[[:space:]]*lib($names)[^ ]* .*=> //p" | sort -u)
[ -n "$libraries" ] || {
    echo "the loader's cache has no library of CUDA"
    exit 1
}

missing=
for file in $program $libraries; do
    lost=$(ldd "$file" 2>/dev/null | grep 'not found' | grep -v '^[[:space:]]*libcuda\.so\.1 ' |
        awk '{print $1}')
    for library in $lost; do
        missing="$missing $file needs $library;"
    done
done
if [ -n "$missing" ]; then
    echo "not in the image:$missing"
    exit 1
fi
echo "$(echo "$libraries" | wc -l) libraries of CUDA find all that they are linked to"
