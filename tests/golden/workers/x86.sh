#!/bin/bash
#SBATCH --job-name=build-images-x86
#SBATCH --array=1-8
#SBATCH --output=%x-%A-%a.log
#SBATCH --partition=cpu
#SBATCH --time=4:00:00
module load python
export BUILD_IMAGES_HOME=/local/build-images
export BUILD_IMAGES_POOL=x86
exec /opt/venv/bin/python3 -m distributed.cli.dask_worker tls://login1:8786 --nworkers 1 --nthreads 1 --no-nanny --memory-limit 0 --death-timeout 60 --no-dashboard --tls-ca-file /etc/dask/ca.pem --tls-cert /etc/dask/node.pem --tls-key /etc/dask/node.key --local-directory "${TMPDIR:-/tmp}"
