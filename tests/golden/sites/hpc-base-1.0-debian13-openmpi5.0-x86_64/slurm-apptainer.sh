#!/bin/bash
# hpc-base-1.0-debian13-openmpi5.0-x86_64 under Slurm, by Apptainer: each task in a container of its own.
#
#   sbatch slurm-apptainer.sh PROGRAM [ARGUMENT...]   a program in the image, or in this folder
#   sbatch slurm-apptainer.sh                         the image's own check, by all tasks
#
# IMAGE in the environment is another image to take, BIND more folders: SOURCE:TARGET[,...].
# It needs x86_64, Linux 3.2.0 or newer, Open MPI 5.0.7, PMIx 5.0.
#SBATCH --job-name=hpc-base
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --time=01:00:00
set -euo pipefail

image=${IMAGE:-/opt/images/hpc-base-1.0-debian13-openmpi5.0-x86_64-sif/image.sif}
if [[ $(uname -m) != x86_64 && -z ${EMULATED:-} ]]; then
    echo "$(hostname) is $(uname -m), and the image is for x86_64 (EMULATED=1 tries it under QEMU)" >&2
    exit 1
fi
[[ -r $image ]] || { echo "no image $image on $(hostname); where images lie: build-images pull quay.io/site/hpc-base:1.0-debian13-openmpi5.0 --format sif" >&2; exit 1; }
options=()
[[ -z ${BIND:-} ]] || options+=(--bind "$BIND")
(($#)) || set -- /opt/build-images/bin/mpi "$SLURM_NTASKS" multiple 'Open MPI v5.0.7'

# Slurm starts the ranks by PMIx, which the image's Open MPI brings.
# No --cleanenv: what tells a rank who it is comes by the environment.
# PMIx's store in shared memory lies in a folder of slurmd's, and does not cross architectures.
export PMIX_MCA_gds=${PMIX_MCA_gds:-hash}
exec srun --mpi=pmix apptainer exec "${options[@]}" "$image" "$@"
