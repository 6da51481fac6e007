# shellcheck shell=bash
# Programs from the distribution. Programs are looked for, not packages, so an engine from another
# source counts.

# kind|program or file that shows whether it is installed|package, or alternatives|why
readonly SYSTEM="
images|mmdebstrap|mmdebstrap|makes the base images from the Debian mirror
images|arch-test|arch-test|tells mmdebstrap whether programs of another architecture run
images|/usr/share/keyrings/debian-archive-keyring.gpg|debian-archive-keyring|verifies packages from the mirror
images|gpgv|gpgv|verifies the index of Debian's source packages
images|/etc/ssl/certs/ca-certificates.crt|ca-certificates|verifies the servers of downloads
images|buildah|buildah|builds the Dockerfiles
images|gcc|gcc|compiles the part of the QEMU handler that runs native tools
images|patchelf|patchelf|relocates native tools for build steps
images|runc|runc|runs build steps
images|/etc/containers/policy.json|golang-github-containers-common|sets which images buildah and skopeo may read
images|newuidmap|uidmap|user namespaces of ordinary users
images|fuse-overlayfs|fuse-overlayfs|layers for ordinary users
images|fusermount3|fuse3|mounts for ordinary users
images|squashfuse|squashfuse|mounts SIF images for ordinary users
images|mksquashfs|squashfs-tools|makes and unpacks SIF images
images|sqfs2tar|squashfs-tools-ng|reads SIF images for the tree digest
images|pigz|pigz|compresses on all cores
images|zstd|zstd|compresses
images|ch-run|charliecloud|runs Charliecloud images (Debian 12's package also installs docker.io)
images|ch-image|charliecloud|builds Charliecloud images
images|ch-convert|charliecloud|unpacks Charliecloud images
test|dockerd|docker.io|Docker Engine, one of the engines under test
test|docker|docker-cli docker.io|Docker's client
test|podman|podman|another engine that runs the checks
test|skopeo|skopeo|reads the engines' output as an independent check
test|docker-registry|docker-registry|a registry on loopback, for locking
test|pass|pass|stores logins for a credential helper
test|dnf|dnf|downloads packages through the cache, as builds on Rocky Linux and UBI do
test|rpmbuild|rpm|makes a package that dnf downloads
test|createrepo_c|createrepo-c|makes the repository that dnf reads
test|chromium|chromium chromium-browser|displays the catalogue
test|npm|npm|fetches axe-core
test|/usr/share/lmod/lmod/init/bash|lmod|loads the modules of site files
test|/usr/include/stdio.h|libc6-dev|compiles the checks' programs on the host
test|mpicc|libopenmpi-dev|compiles the checks' MPI programs on the host
test|mpirun|openmpi-bin|starts the checks' programs on the host
test|mpicc.mpich|libmpich-dev|compiles the checks' programs with MPICH
test|mpiexec.mpich|mpich|starts the checks' programs with MPICH
test|munged|munge|authenticates users of Slurm, whose launcher is under test
test|slurmctld|slurmctld|Slurm with two nodes on loopback
test|slurmd|slurmd|Slurm with two nodes on loopback
test|srun|slurm-client|Slurm with two nodes on loopback
test|/usr/lib/python3/dist-packages/mpi4py/__init__.py|python3-mpi4py|the mpi4py check on the host
test|/usr/lib/python3/dist-packages/numpy/__init__.py|python3-numpy|the mpi4py check on the host
"

declare -a WANTED=()     # packages; "a b" means a, or b if the release has no package a

want() {
    local known
    for known in "${WANTED[@]}"; do
        [[ $known != "$1" ]] || return 0
    done
    WANTED+=("$1")
    host_row "${1%% *}" "system (apt)" "$2"
}

is_there() {
    case $1 in
        /*) [[ -s $1 ]] ;;
        *) [[ -n $(type -P "$1") ]] ;;
    esac
}

plan_packages() {
    WANTED=()
    local kind sign package why
    while IFS='|' read -r kind sign package why; do
        [[ -n $kind && ($kind == images || $TARGET == test) ]] || continue
        is_there "$sign" || want "$package" "$why"
    done <<<"$SYSTEM"
    # Debian's ch-image starts without Lark, but needs it to read a Dockerfile.
    if [[ $(type -P ch-image) != /usr/local/* && ! -d /usr/lib/python3/dist-packages/lark ]]; then
        want python3-lark "needed by ch-image to read Dockerfiles"
    fi
    plan_python_packages
    # Left by an interrupted installation: programs may exist although packages are incomplete.
    if [[ $PART != user && -e $(packages_marker) ]]; then
        row "unfinished packages" "system (apt)" "an earlier set-up was interrupted"
    elif ((${#WANTED[@]} == 0)); then
        return 0
    fi
    COMMANDS+=("apt-get install --yes --no-install-recommends ${WANTED[*]%% *}")
    host_step do_packages
}

packages_marker() { printf '%s' "$HOME_DIR/.installing-packages"; }

do_packages() {
    [[ -n $(type -P apt-get) ]] || die 4 "$(release_name) has no apt-get, and these programs' \
packages are missing: ${WANTED[*]}" "install them by other means; programs on PATH are found"
    run_step "reading apt's package lists" update_lists
    run_step "installing ${#WANTED[@]} system packages" install_packages
}

apt_get() {
    env DEBIAN_FRONTEND=noninteractive apt-get \
        -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 "$@"
}

# Go on if a third-party source is broken: the packages may all come from other sources.
update_lists() {
    apt_get update || echo "apt-get update had errors; continuing with the lists that it has"
}

install_packages() {
    local chosen=() package
    for package in "${WANTED[@]}"; do
        chosen+=("$(known_package "$package")")
    done
    if [[ -e $(packages_marker) ]]; then
        configure_packages
        apt_get --fix-broken --yes --no-install-recommends install
    fi
    touch "$(packages_marker)"
    ((${#chosen[@]} == 0)) || apt_get --yes --no-install-recommends install "${chosen[@]}"
    rm -f "$(packages_marker)"
}

# dpkg of the interrupted set-up may still be running, and dpkg, unlike apt, does not wait for its
# lock. If dpkg cannot configure a package, apt may repair it.
configure_packages() {
    local try
    for try in 1 2 3 4 5 6; do
        env DEBIAN_FRONTEND=noninteractive dpkg --configure -a && return
        echo "try $try of dpkg --configure -a failed"
        sleep 5
    done
}

# Prints the first of several package names that this release has.
known_package() {
    local name names
    read -ra names <<<"$1"
    for name in "${names[@]}"; do
        if apt-cache show --no-all-versions "$name" >/dev/null 2>&1; then
            printf '%s' "$name"
            return
        fi
    done
    echo "no package $1 in apt's lists: on Ubuntu, is \`universe\` enabled?" >&2
    exit 4
}
