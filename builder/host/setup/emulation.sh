# shellcheck shell=bash
# Programs of other architectures: QEMU, registered in the kernel. Only root's files are registered,
# since all users' programs run through them. A reboot loses this; systemd restores it from a file.

readonly BINFMT=/proc/sys/fs/binfmt_misc
readonly BINFMT_KEPT=/etc/binfmt.d/build-images.conf
# What the kernel matches to hand programs to QEMU: from QEMU's scripts/qemu-binfmt-conf.sh.
readonly MAGIC='\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\x15\x00'
readonly MASK='\xff\xff\xff\xff\xff\xff\xff\xfc\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\x00'
readonly MAGIC_AARCH64='\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00'
readonly MASK_AARCH64='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
# The magic of ppc64le as the kernel prints it.
readonly SERVES='magic 7f454c46020101[0-9a-f]{18}02001500'
# QEMU 7.2 hangs in Open MPI's configure, in a test of a 128-bit compare-and-swap.
readonly OLDEST_QEMU=8

# The major version of a QEMU; 0 if it does not print one.
qemu_major() {
    local text=''
    text=$("$1" --version 2>/dev/null) || true
    [[ $text =~ version\ ([0-9]+) ]] && printf '%s' "${BASH_REMATCH[1]}" || printf 0
}

# handler_serves FILE: whether it is enabled, is for ppc64le, works inside containers (flag F) and
# names a QEMU that is new enough. Our own handler's QEMU is, even if its file is not visible.
handler_serves() {
    local text
    text=$(<"$1") 2>/dev/null || return 1
    [[ $text == enabled* && $text =~ $SERVES ]] || return 1
    [[ $text =~ flags:\ [A-Z]*F ]] || return 1
    [[ ${1##*/} == build-images-ppc64le ]] && return 0
    [[ $text =~ interpreter\ ([^$'\n']+) ]] || return 1
    (($(qemu_major "${BASH_REMATCH[1]}") >= OLDEST_QEMU))
}

# Inside a container, the host's handlers may work although binfmt_misc is not visible.
serves_out_of_sight() {
    [[ ! -e $BINFMT/register ]] && ! may_mount && arch-test ppc64el >/dev/null 2>&1
}

may_mount() {
    local capabilities
    ((EUID == 0)) || return
    capabilities=$(awk '/^CapEff/ { print $2 }' /proc/self/status)
    ((0x$capabilities >> 21 & 1))      # CAP_SYS_ADMIN
}

door_version() {
    cat "$PACKAGE"/build/native/{twins.c,twins.ld,interpreter.py} | sha256sum | cut -c 1-12
}

# interpreter ARCH: the program for the kernel to start: on x86_64 a QEMU that runs native twins in
# build steps that have them (builder/build/native/twins.c). Its name changes with its sources.
interpreter() {
    if [[ $ARCH == x86_64 ]]; then
        printf '%s/qemu/qemu-%s.%s' "$TOOLS" "$1" "$(door_version)"
    else
        readlink -f "$TOOLS/bin/qemu-$1"
    fi
}

# registered_interpreter ARCH: the program that the kernel starts by our enabled handler.
registered_interpreter() {
    local text
    text=$(cat "$BINFMT/build-images-$1" 2>/dev/null) || return 1
    [[ $text == enabled* && $text =~ interpreter\ ([^$'\n']+) ]] || return 1
    printf '%s' "${BASH_REMATCH[1]}"
}

# handler_is_ours ARCH: whether our handler has the interpreter of this version.
handler_is_ours() {
    local file
    file=$(registered_interpreter "$1") || return 1
    # One of another home is enough: the kernel keeps it open.
    [[ ${file##*.} == "$(door_version)" ]] || return 1
    # If QEMU was replaced since, or the home was emptied, the registered QEMU is unknown.
    [[ $file != "$TOOLS"/* || -x $file ]]
}

# handler_is_roots ARCH: whether it is ours and its file belongs to root. A file that is not visible
# existed when it was registered.
handler_is_roots() {
    local file
    handler_is_ours "$1" || return 1
    file=$(registered_interpreter "$1")
    [[ ! -e $file || $(stat -c %u "$file") == 0 ]]
}

emulated() {
    local file is_ours=handler_is_ours
    [[ $ARCH != ppc64le ]] || return 0
    [[ $PART == user ]] || is_ours=handler_is_roots
    ! { "$is_ours" ppc64le && "$is_ours" aarch64; } || return 0
    [[ $ARCH != x86_64 ]] || ! may_mount || return 1
    for file in "$BINFMT"/*; do
        case ${file##*/} in
            register | status | '*') ;;
            *) handler_serves "$file" && return 0 ;;
        esac
    done
    serves_out_of_sight
}

# Whether systemd registers the handlers at the next start, too.
lasts() {
    local file name
    for name in ppc64le aarch64; do
        [[ $name != "$ARCH" ]] || continue
        file=$(registered_interpreter "$name") || return 0   # not a handler of ours
        [[ -e $file ]] || continue
        grep -qsF ":$file:" "$BINFMT_KEPT" || return 1
    done
}

plan_emulation() {
    if ! emulated; then
        host_row "binfmt handlers build-images-*" "kernel, $BINFMT_KEPT" \
            "run ppc64le and aarch64 programs through QEMU"
        host_step do_emulation
    elif [[ $PART != user ]] && ! lasts; then
        row "binfmt handlers build-images-*" "$BINFMT_KEPT" "register them again at the next start"
        STEPS+=(do_emulation)
    fi
}

do_emulation() { run_step "registering QEMU" register_qemus; }

# The kernel tries the last registered handler first (fs/binfmt_misc.c puts it at the head of its
# list), so existing handlers need not be changed.
register_qemus() {
    if [[ ! -e $BINFMT/register ]]; then
        modprobe binfmt_misc 2>/dev/null || true
        if ! mount -t binfmt_misc binfmt_misc "$BINFMT"; then
            echo "cannot mount binfmt_misc: if this is a container, register QEMU on the host"
            echo "(flags OCF), or start the container with --privileged"
            exit 4
        fi
    fi
    emulated || register_both
    keep_both
}

register_both() {
    register_qemu ppc64le "$MAGIC" "$MASK"
    [[ $ARCH == aarch64 ]] || register_qemu aarch64 "$MAGIC_AARCH64" "$MASK_AARCH64"
}

# The lines that systemd-binfmt reads: https://man7.org/linux/man-pages/man5/binfmt.d.5.html
keep_both() {
    install -d -m 755 "$(dirname "$BINFMT_KEPT")"
    {
        echo "# Made by build-images: QEMU for programs of other architectures."
        kept_line ppc64le "$MAGIC" "$MASK"
        kept_line aarch64 "$MAGIC_AARCH64" "$MASK_AARCH64"
    } >"$BINFMT_KEPT.new"
    mv "$BINFMT_KEPT.new" "$BINFMT_KEPT"
}

# kept_line ARCH MAGIC MASK
kept_line() {
    local file
    file=$(registered_interpreter "$1") || return 0
    [[ ! -e $file ]] || printf '%s\n' "$(handler_line "$1" "$2" "$3" "$file")"
}

# handler_line ARCH MAGIC MASK QEMU
handler_line() {
    # O: pass an open file; C: keep the program's credentials; F: open QEMU now, so that it works in
    # containers, which do not contain it; P: also pass the name by which the program was called,
    # which only kernels from 5.12 on announce to QEMU.
    local flags=OCPF
    [[ $(printf '%s\n' 5.12 "$(uname -r)" | sort -V | head -n 1) == 5.12 ]] || flags=OCF
    printf '%s' ":build-images-$1:M::$2:$3:$4:$flags"
}

# register_qemu ARCH MAGIC MASK
register_qemu() {
    local qemu handler=build-images-$1
    qemu=$(interpreter "$1")
    [[ -x $qemu ]] || make_interpreter "$1" "$qemu"
    [[ ! -e $BINFMT/$handler ]] || echo -1 >"$BINFMT/$handler"
    if ! handler_line "$1" "$2" "$3" "$qemu" >"$BINFMT/register"; then
        echo "the kernel refuses the handler $handler for $qemu"
        exit 4
    fi
}

# make_interpreter ARCH FILE
make_interpreter() {
    rm -f "$TOOLS/qemu/qemu-$1".*
    PYTHONPATH=$(dirname "$PACKAGE") "$(own_python)" -B "$PACKAGE/build/native/interpreter.py" \
        "$TOOLS/bin/qemu-$1" "$2.new"
    "$2.new" --version
    mv -T "$2.new" "$2"
}
