#!/bin/bash
# cuda-base-1.0-debian12-cuda11.8-openmpi4.1-ppc64le with Podman, as an ordinary user, in this folder.
#
#   ./podman.sh PROGRAM [ARGUMENT...]   a program in the image, or in this folder
#   ./podman.sh                         the image's own checks
#
# It needs ppc64le, Linux 3.10.0 or newer, NVIDIA driver 450.80.02 or newer, Open MPI 4.1.4, PMIx 4.2.
# GPUs need the Container Device Interface: run nvidia-ctk cdi generate once on the host.
set -euo pipefail

image=${IMAGE:-quay.io/site/cuda-base:1.0-debian12-cuda11.8-openmpi4.1}
(($#)) || set -- /opt/build-images/run-checks
exec podman run --rm --arch=ppc64le --device nvidia.com/gpu=all --ipc=host --network=host \
    --security-opt=label=disable --volume="$PWD:/work" --workdir=/work "$image" "$@"
