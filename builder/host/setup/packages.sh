# shellcheck shell=bash
# Programs that the distribution has. Looked for as programs, not as packages: an engine from
# elsewhere counts.

# kind|what shows that it is there: a program, or a file|package, or several to choose from|why
readonly SYSTEM="
images|mmdebstrap|mmdebstrap|makes the base images from the Debian mirror
images|arch-test|arch-test|mmdebstrap asks it whether a foreign architecture runs
images|/usr/share/keyrings/debian-archive-keyring.gpg|debian-archive-keyring|proves what the mirror sends
images|gpgv|gpgv|proves the index of Debian's source packages
images|/etc/ssl/certs/ca-certificates.crt|ca-certificates|proves whom downloads come from
images|buildah|buildah|builds the Dockerfiles
images|gcc|gcc|puts the native tools' door before QEMU
images|patchelf|patchelf|moves native tools to where build steps see them
images|runc|runc|runs build steps
images|/etc/containers/policy.json|golang-github-containers-common|says which images buildah and skopeo may read
images|newuidmap|uidmap|user namespaces of ordinary users
images|fuse-overlayfs|fuse-overlayfs|layers for ordinary users
images|fusermount3|fuse3|mounts for ordinary users
images|squashfuse|squashfuse|mounts SIF images for ordinary users
images|mksquashfs|squashfs-tools|makes and unpacks SIF images
images|sqfs2tar|squashfs-tools-ng|reads SIF images for the tree digest
images|pigz|pigz|compresses on all cores
images|zstd|zstd|compresses
images|ch-run|charliecloud|runs Charliecloud images (Debian 12's package brings docker.io with it)
images|ch-image|charliecloud|builds Charliecloud images
images|ch-convert|charliecloud|unpacks Charliecloud images
test|dockerd|docker.io|Docker Engine, one of the engines under test
test|docker|docker-cli docker.io|Docker's client
test|podman|podman|another engine that runs the checks
test|skopeo|skopeo|reads what the engines wrote, as a second opinion
test|docker-registry|docker-registry|a registry on loopback, for locking
test|pass|pass|keeps logins for a credential helper
test|dnf|dnf|downloads packages through the cache, as builds on Rocky Linux and UBI do
test|rpmbuild|rpm|makes a package for it
test|createrepo_c|createrepo-c|makes a repository of it
test|chromium|chromium chromium-browser|looks at the catalogue
test|/usr/share/lmod/lmod/init/bash|lmod|loads the modules of site files
test|/usr/include/stdio.h|libc6-dev|compiles the checks' programs on the host
test|mpicc|libopenmpi-dev|the same
test|mpirun|openmpi-bin|starts the checks' programs on the host
test|mpicc.mpich|libmpich-dev|the checks' programs with the other MPI
test|mpiexec.mpich|mpich|the same
test|munged|munge|proves who talks to Slurm, whose launcher is under test
test|slurmctld|slurmctld|Slurm of two nodes on loopback
test|slurmd|slurmd|the same
test|srun|slurm-client|the same
test|/usr/lib/python3/dist-packages/mpi4py/__init__.py|python3-mpi4py|the mpi4py check on the host
test|/usr/lib/python3/dist-packages/numpy/__init__.py|python3-numpy|the same
"

declare -a WANTED=()     # packages; "a b" means a, or b where the release has no a

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
    # Debian's ch-image works without Lark until it has to read a Dockerfile.
    if [[ $(type -P ch-image) != /usr/local/* && ! -d /usr/lib/python3/dist-packages/lark ]]; then
        want python3-lark "ch-image reads Dockerfiles with it"
    fi
    plan_python_packages
    # Left by an installation that did not end: programs may be there, and their packages not whole.
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

# One broken third-party source is no reason to stop: the packages may all come from elsewhere.
update_lists() {
    apt_get update || echo "apt-get update had errors; trying with what it has"
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

# dpkg of the interrupted set-up may still be ending, and dpkg, unlike apt, does not wait for its
# lock. What it cannot configure, apt may repair.
configure_packages() {
    local try
    for try in 1 2 3 4 5 6; do
        env DEBIAN_FRONTEND=noninteractive dpkg --configure -a && return
        echo "try $try of dpkg --configure -a failed"
        sleep 5
    done
}

# The first of several names that this release has.
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
