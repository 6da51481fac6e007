# shellcheck shell=bash
# Mounts for ordinary users. In containers and on minimal systems only root can use /dev/fuse. This
# opens it to all users, and adds a udev rule that keeps it open.

readonly FUSE=/dev/fuse
readonly FUSE_RULE=/etc/udev/rules.d/60-build-images-fuse.rules

plan_fuse() {
    [[ -c $FUSE && $(stat -c %a "$FUSE") != 666 ]] || return 0
    host_row "mode 666 of $FUSE" "$FUSE_RULE" "mounts for ordinary users"
    COMMANDS+=("chmod 666 $FUSE")
    host_step do_fuse
}

do_fuse() { run_step "opening $FUSE to ordinary users" open_fuse; }

open_fuse() {
    chmod 666 "$FUSE"
    install -d -m 755 "$(dirname "$FUSE_RULE")"
    printf 'KERNEL=="fuse", MODE="0666"\n' >"$FUSE_RULE"
}
