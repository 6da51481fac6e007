#!/bin/bash
# cuda-base-1.0-debian12-cuda11.8-openmpi4.1-ppc64le under Slurm, with Charliecloud and the host's mpiexec.
#
# For sites that start MPI like this (LRZ: mpiexec -n TASKS -ppn TASKS ch-run -b ... -w ./NAME -- PROGRAM).
# The host's MPI and the image's MPI must be of the same kind.
# It needs ppc64le, Linux 3.10.0 or newer, NVIDIA driver 450.80.02 or newer, Open MPI 4.1.4, PMIx 4.2.
#
#   sbatch mpiexec-charliecloud.sh PROGRAM [ARGUMENT...]   a program in the image, or in this folder
#   sbatch mpiexec-charliecloud.sh                         the image's own check, by all tasks
#
# Environment: IMAGE selects another image, and BIND adds a folder: SOURCE:TARGET, such as
# BIND=/lrz/sys/:/lrz/sys/ for the site's own libraries.
# Run once, on a node with GPUs, to add the driver's libraries: ch-fromhost --nvidia FOLDER
#SBATCH --job-name=cuda-base
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gres=gpu:4
#SBATCH --time=01:00:00
set -euo pipefail

image=${IMAGE:-/opt/images/cuda-base-1.0-debian12-cuda11.8-openmpi4.1-ppc64le-directory/rootfs}
if [[ $(uname -m) != ppc64le && -z ${EMULATED:-} ]]; then
    echo "$(hostname) is $(uname -m), but the image is for ppc64le; to try it under QEMU, set EMULATED=1" >&2
    exit 1
fi
[[ -x $image/usr ]] || { echo "no image $image on $(hostname); in the folder of images, run: build-images pull quay.io/site/cuda-base:1.0-debian12-cuda11.8-openmpi4.1 --format directory" >&2; exit 1; }
options=(--set-env)
[[ -z ${BIND:-} ]] || options+=(-b "$BIND")
# By default, ch-run binds only the host's /home; another folder must also exist in the image.
[[ ! -d $image$PWD ]] || options+=(-b "$PWD:$PWD" --cd="$PWD")
(($#)) || set -- /opt/build-images/bin/mpi "$SLURM_NTASKS" multiple 'Open MPI v4.1.4'

exec mpiexec -n "$SLURM_NTASKS" --map-by "ppr:$SLURM_NTASKS_PER_NODE:node" \
    ch-run "${options[@]}" -w "$image" -- "$@"
