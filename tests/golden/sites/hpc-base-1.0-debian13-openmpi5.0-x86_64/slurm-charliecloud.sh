#!/bin/bash
# hpc-base-1.0-debian13-openmpi5.0-x86_64 under Slurm, by Charliecloud: each task in a container of its own.
#
#   sbatch slurm-charliecloud.sh PROGRAM [ARGUMENT...]   a program in the image, or in this folder
#   sbatch slurm-charliecloud.sh                         the image's own check, by all tasks
#
# IMAGE in the environment is another image to take, BIND a folder more: SOURCE:TARGET.
# It needs x86_64, Linux 3.2.0 or newer, Open MPI 5.0.7, PMIx 5.0.
#SBATCH --job-name=hpc-base
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --time=01:00:00
set -euo pipefail

image=${IMAGE:-/opt/images/hpc-base-1.0-debian13-openmpi5.0-x86_64-directory/rootfs}
if [[ $(uname -m) != x86_64 && -z ${EMULATED:-} ]]; then
    echo "$(hostname) is $(uname -m), and the image is for x86_64 (EMULATED=1 tries it under QEMU)" >&2
    exit 1
fi
[[ -x $image/usr ]] || { echo "no image $image on $(hostname); where images lie: build-images pull quay.io/site/hpc-base:1.0-debian13-openmpi5.0 --format directory" >&2; exit 1; }
options=(--set-env)
[[ -z ${BIND:-} ]] || options+=(-b "$BIND")
# Of the host's folders, ch-run shows /home alone by itself; another needs its like in the image.
[[ ! -d $image$PWD ]] || options+=(-b "$PWD:$PWD" --cd="$PWD")
(($#)) || set -- /opt/build-images/bin/mpi "$SLURM_NTASKS" multiple 'Open MPI v5.0.7'

# Slurm starts the ranks by PMIx, which the image's Open MPI brings.
# PMIx's store in shared memory lies in a folder of slurmd's, and does not cross architectures.
export PMIX_MCA_gds=${PMIX_MCA_gds:-hash}
exec srun --mpi=pmix ch-run "${options[@]}" "$image" -- "$@"
