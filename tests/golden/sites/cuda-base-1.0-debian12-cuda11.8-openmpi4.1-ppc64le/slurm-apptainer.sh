#!/bin/bash
# cuda-base-1.0-debian12-cuda11.8-openmpi4.1-ppc64le under Slurm, with Apptainer: each task in its own container.
#
#   sbatch slurm-apptainer.sh PROGRAM [ARGUMENT...]   a program in the image, or in this folder
#   sbatch slurm-apptainer.sh                         the image's own check, by all tasks
#
# Environment: IMAGE selects another image, and BIND adds folders: SOURCE:TARGET[,...].
# It needs ppc64le, Linux 3.10.0 or newer, NVIDIA driver 450.80.02 or newer, Open MPI 4.1.4, PMIx 4.2.
#SBATCH --job-name=cuda-base
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gres=gpu:4
#SBATCH --time=01:00:00
set -euo pipefail

image=${IMAGE:-/opt/images/cuda-base-1.0-debian12-cuda11.8-openmpi4.1-ppc64le-sif/image.sif}
if [[ $(uname -m) != ppc64le && -z ${EMULATED:-} ]]; then
    echo "$(hostname) is $(uname -m), but the image is for ppc64le; to try it under QEMU, set EMULATED=1" >&2
    exit 1
fi
[[ -r $image ]] || { echo "no image $image on $(hostname); in the folder of images, run: build-images pull quay.io/site/cuda-base:1.0-debian12-cuda11.8-openmpi4.1 --format sif" >&2; exit 1; }
options=()
[[ -z ${BIND:-} ]] || options+=(--bind "$BIND")
(($#)) || set -- /opt/build-images/bin/mpi "$SLURM_NTASKS" multiple 'Open MPI v4.1.4'

# Slurm starts the ranks through PMIx, which the image's Open MPI contains.
# No --cleanenv: a rank gets its number through the environment.
# PMIx's store in shared memory is in a folder of slurmd, and cannot be shared across architectures.
export PMIX_MCA_gds=${PMIX_MCA_gds:-hash}
exec srun --mpi=pmix apptainer exec --nv "${options[@]}" "$image" "$@"
