# shellcheck shell=bash
# Mounts for ordinary users. Containers and minimal systems have /dev/fuse for root alone; udev
# makes it open to all, and goes on to do so by a rule of ours.

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
