"""What `--help` says beyond the options: descriptions, examples, exit codes."""

from __future__ import annotations

EXIT_CODES = """\
exit codes:
  0  done                          3  the selection is empty
  1  a build or a check failed     4  this machine lacks something needed
  2  bad input or bad usage        5  refused: proof missing, wrong or too old
  130  interrupted: the same command goes on from there
"""

DESCRIPTION = """\
Build container images for supercomputers: recipes declared once in YAML, times a matrix of
architecture x base x CUDA x MPI, as OCI image, Singularity image (SIF) and Charliecloud
tarball, each proven by tests inside the container.

Without a command, every selected image is compiled, built, packed and verified; without a
selector, the default selection of matrix.yaml is taken. An image that is done and unchanged
is not built again.
"""

EXAMPLES = """\
examples:
  build-images                                   the default selection
  build-images --arch ppc64le --mpi openmpi      every recipe and base, for POWER with Open MPI
  build-images --image 'python-mpi-*-x86_64'     by image identifier
  build-images plan --all                        what there is, and in which order it is built
  build-images explain --mpi mpich               why each cell is in or out
  build-images gc                                what the store holds in vain
  build-images doctor                            what this machine can build, run and verify
  build-images publish --to quay.io/site         proven images, with their proof, to a registry
  build-images bundle --output site.tar          the same in one file, to be carried
  build-images check-host image.sif              whether an image runs on this machine
  build-images verify DIR --launcher srun        whether Slurm starts the ranks of an image

"""

REPRODUCE = """\
Build an image again and compare OCI layout and Charliecloud tarball with those in its folder.

It is built from the base that lies in the folder, from the specs that the project has for it and
from locked sources, without any layer of an earlier build, in a scratch place that is removed
afterwards; nothing in the folder changes. The exit code is 0 if both are the same byte for byte,
and 1 if not: then, for each layer that differs, the first path is named, and whether it is its
content, mode, mtime, owner, link or type that differs, or whether it is missing. Packages come
from the distribution's mirror of the day: versions that changed meanwhile are listed. With
--no-native-tools it also shows that native tools changed nothing in an image that was lent them.
"""

CHECK_HOST = """\
Say whether an image runs on this host, or on one of which a record was brought: yes, no or cannot
tell, rule by rule, each with the reason and the fix. Nothing is started: the image's host contract
is read from its labels, or from /opt/build-images/host-contract.json in it.

Architecture, processor, kernel, driver, GPUs and their compute capability all have to fit, one
container runtime has to start it, and the ranks of its MPI have to be launched in one way:
  in-container  by the launcher in the image, on one node
  hybrid        by the host's mpirun or srun, each rank in a container of its own
  bind          the same, with the host's MPI bound into the containers
Without --runtime, any that is there will do; without --launcher, any way. A fact that is needed and
not known makes no yes.
"""

CHECK_HOST_CODES = """\
exit codes:
  0  yes
  2  bad input or bad usage: no such image, a record or a contract with faults
  4  cannot tell: something that is needed is not known, or the image has no host contract
  5  no: refused, it must not run there

examples:
  build-images check-host out/IDENTIFIER
  build-images check-host image.sif --launcher hybrid --runtime apptainer
  build-images check-host --record > node.json            on a node of the site
  build-images check-host image.sif --host node.json      wherever the image is
"""
