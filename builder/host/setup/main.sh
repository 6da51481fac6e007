#!/usr/bin/env bash
# Installs the tools for building images that this machine lacks; ci/setup and `build-images setup`
# run it. It can be stopped at any time and run again: complete parts are kept, incomplete ones are
# made again.
# shellcheck disable=SC2034  # the other parts use the variables set here
set -euo pipefail

PACKAGE=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
PROJECT=${BUILD_IMAGES_CLONE-}      # empty if the program was installed without a clone
readonly PACKAGE PROJECT
for part in report machine packages users tools emulation fuse python; do
    # shellcheck source=/dev/null
    source "$PACKAGE/host/setup/$part.sh"
done

usage() {
    cat <<TEXT
usage: $SELF [images | test] [--with-cosign] [--dry-run | --check]
       $SELF host [images | test] [--user USER]... [--dry-run | --check]
       $SELF --print-mirror [--sources DIR] [--codename NAME]

  images          the user's part, to build and run images (the default); it never needs root
  test            the same, and what the tests need: more engines, an MPI, the test tools
  host            the administrator's part, as root: packages, tools in /opt/build-images, QEMU
                  for programs of other architectures, /dev/fuse
  --user USER     also give this user sub-ids (may be repeated)
  --with-cosign   also install cosign, for \`publish --key keyless\`; \`test\` includes it
  --dry-run       print what would be installed, and where; install nothing
  --check         print what is missing; exit code 4 if anything is
  --print-mirror  print the Debian mirror that apt uses, read from DIR (default /etc/apt)
                  for the release NAME (default: this machine's)

Root does both parts in a clone that root owns.

environment: BUILD_IMAGES_HOME    folder for the user's tools and stores (default
                                  /var/lib/build-images for root, else
                                  \${XDG_DATA_HOME:-~/.local/share}/build-images)
             BUILD_IMAGES_SHARED  folder for the administrator's (default /opt/build-images)
             BUILD_IMAGES_MIRROR  a Debian mirror (default: the one that apt uses)
exit codes:  0 done, 1 a step failed, 2 bad usage, 4 this machine lacks something
TEXT
}

# Fills ROWS (what would be installed) and STEPS (how). If the caller is not root, parts that need
# root go to HOST_ROWS and COMMANDS. Changes nothing.
plan() {
    ROWS=() STEPS=() HOST_ROWS=() COMMANDS=()
    plan_packages
    plan_users
    plan_fuse
    plan_python
    plan_tools
    plan_emulation
}

install_all() {
    lock_home
    # Another set-up may have done the work while this one was waiting for the lock.
    plan
    begin_python
    local step
    for step in "${STEPS[@]}"; do
        "$step"
    done
    plan
    ((${#ROWS[@]} == 0)) ||
        die 1 "the set-up ended, but this is still missing: $(names_of "${ROWS[@]}")" "see $LOG"
}

# Does the part of root with sudo if it needs no password, else prints the commands to paste.
leave_to_administrator() {
    ((${#HOST_ROWS[@]})) || return 0
    if [[ -n $(type -P sudo) ]] && sudo -n true 2>/dev/null; then
        sudo -n -- env BUILD_IMAGES_CLONE="$PROJECT" BUILD_IMAGES_SHARED="$SHARED" \
            BUILD_IMAGES_MIRROR="${BUILD_IMAGES_MIRROR-}" \
            bash "$PACKAGE/host/setup/main.sh" host "$TARGET" --user "$(id -un)"
        plan
        ((${#ROWS[@]} == 0)) || install_all
    fi
    ((${#HOST_ROWS[@]} == 0)) ||
        die 4 "this host lacks: $(names_of "${HOST_ROWS[@]}")" "$(commands_of_root)"
}

main() {
    local action=install sources=/etc/apt codename=''
    PART=user TARGET=images WITH_COSIGN='' USERS=()
    while (($#)); do
        case $1 in
            images | test) TARGET=$1 ;;
            host) PART=host ;;
            --with-cosign) WITH_COSIGN=yes ;;
            --dry-run) action=dry-run ;;
            --check) action=check ;;
            --print-mirror) action=print-mirror ;;
            --sources | --codename | --user)
                (($# > 1)) || die 2 "$1 needs a value" "$SELF --help"
                case $1 in
                    --sources) sources=$2 ;;
                    --codename) codename=$2 ;;
                    --user) USERS+=("$2") ;;
                esac
                shift
                ;;
            -h | --help) usage && exit 0 ;;
            *) die 2 "unknown argument: $1" "$SELF --help" ;;
        esac
        shift
    done
    if [[ $action == print-mirror ]]; then
        print_mirror "$sources" "${codename:-$(release_codename)}"
        exit
    fi
    choose_part "$action"
    readonly PART TARGET WITH_COSIGN
    look_around
    plan
    if ((${#ROWS[@]} + ${#HOST_ROWS[@]} == 0)); then
        say "set-up: nothing to install; this machine has everything for \`$(purpose)\`"
        exit 0
    fi
    print_plan
    case $action in
        check) die 4 "missing: $(names_of "${ROWS[@]}" "${HOST_ROWS[@]}")" "$(way_out)" ;;
        install)
            ((${#ROWS[@]} == 0)) || install_all
            leave_to_administrator
            say "set-up: done in ${SECONDS} s"
            [[ $PART == host ]] || say "  to call the programs by name: $(path_line)"
            ;;
    esac
}

main "$@"
