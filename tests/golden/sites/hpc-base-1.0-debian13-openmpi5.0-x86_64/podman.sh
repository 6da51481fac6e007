#!/bin/bash
# hpc-base-1.0-debian13-openmpi5.0-x86_64 with Podman, as an ordinary user, in this folder.
#
#   ./podman.sh PROGRAM [ARGUMENT...]   a program in the image, or in this folder
#   ./podman.sh                         the image's own checks
#
# It needs x86_64, Linux 3.2.0 or newer, Open MPI 5.0.7, PMIx 5.0.
set -euo pipefail

image=${IMAGE:-quay.io/site/hpc-base@sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa}
(($#)) || set -- /opt/build-images/run-checks
exec podman run --rm --arch=amd64 --ipc=host --network=host \
    --security-opt=label=disable --volume="$PWD:/work" --workdir=/work "$image" "$@"
