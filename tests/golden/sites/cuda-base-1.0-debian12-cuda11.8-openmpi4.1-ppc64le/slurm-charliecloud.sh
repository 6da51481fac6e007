#!/bin/bash
# cuda-base-1.0-debian12-cuda11.8-openmpi4.1-ppc64le under Slurm, by Charliecloud: each task in a container of its own.
#
#   sbatch slurm-charliecloud.sh PROGRAM [ARGUMENT...]   a program in the image, or in this folder
#   sbatch slurm-charliecloud.sh                         the image's own check, by all tasks
#
# IMAGE in the environment is another image to take, BIND a folder more: SOURCE:TARGET.
# It needs ppc64le, Linux 3.10.0 or newer, NVIDIA driver 450.80.02 or newer, Open MPI 4.1.4, PMIx 4.2.
# Once, on a node with GPUs, to bring the driver's libraries in: ch-fromhost --nvidia FOLDER
#SBATCH --job-name=cuda-base
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gres=gpu:4
#SBATCH --time=01:00:00
set -euo pipefail

image=${IMAGE:-/opt/images/cuda-base-1.0-debian12-cuda11.8-openmpi4.1-ppc64le-directory/rootfs}
if [[ $(uname -m) != ppc64le && -z ${EMULATED:-} ]]; then
    echo "$(hostname) is $(uname -m), and the image is for ppc64le (EMULATED=1 tries it under QEMU)" >&2
    exit 1
fi
[[ -x $image/usr ]] || { echo "no image $image on $(hostname); where images lie: build-images pull quay.io/site/cuda-base:1.0-debian12-cuda11.8-openmpi4.1 --format directory" >&2; exit 1; }
options=(--set-env)
[[ -z ${BIND:-} ]] || options+=(-b "$BIND")
# Of the host's folders, ch-run shows /home alone by itself; another needs its like in the image.
[[ ! -d $image$PWD ]] || options+=(-b "$PWD:$PWD" --cd="$PWD")
(($#)) || set -- /opt/build-images/bin/mpi "$SLURM_NTASKS" multiple 'Open MPI v4.1.4'

# Slurm starts the ranks by PMIx, which the image's Open MPI brings.
# PMIx's store in shared memory lies in a folder of slurmd's, and does not cross architectures.
export PMIX_MCA_gds=${PMIX_MCA_gds:-hash}
exec srun --mpi=pmix ch-run "${options[@]}" "$image" -- "$@"
