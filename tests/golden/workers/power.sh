#!/bin/bash
#SBATCH --job-name=build-images-power
#SBATCH --array=1-1
#SBATCH --output=%x-%A-%a.log
export BUILD_IMAGES_POOL=power
exec /opt/venv/bin/python3 -m distributed.cli.dask_worker SCHEDULER --nworkers 1 --nthreads 1 --no-nanny --memory-limit 0 --death-timeout 60 --no-dashboard --tls-ca-file /etc/dask/ca.pem --tls-cert /etc/dask/node.pem --tls-key /etc/dask/node.key --local-directory "${TMPDIR:-/tmp}"
