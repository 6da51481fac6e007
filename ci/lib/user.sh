# shellcheck shell=bash
# Apptainer and Charliecloud run as an ordinary user. For root that is a system user of its own.

readonly IMAGE_USER=build-images
readonly IMAGE_USER_HOME=/var/lib/build-images/user
readonly IDS=65536            # as many as a container may use

runner() { if ((EUID == 0)); then printf %s "$IMAGE_USER"; else id -un; fi; }

has_ids() { grep -q "^$(runner):" "/etc/$1" 2>/dev/null; }

plan_user() {
    local missing=''
    if ((EUID == 0)) && ! grep -q "^$IMAGE_USER:" /etc/passwd; then
        missing="system user $IMAGE_USER"
        row "$missing" "/etc/passwd, $IMAGE_USER_HOME" \
            "Apptainer and Charliecloud run as an ordinary user"
    fi
    if ! has_ids subuid || ! has_ids subgid; then
        row "$IDS sub-ids of $(runner)" "/etc/subuid, /etc/subgid" "user ids inside containers"
        missing+="${missing:+, }sub-ids of $(runner)"
    fi
    if ((EUID == 0)) && [[ -z $missing && ! -d $IMAGE_USER_HOME ]]; then
        missing="home of $IMAGE_USER"
        row "$missing" "$IMAGE_USER_HOME" "caches of Apptainer and Charliecloud"
    fi
    [[ -n $missing ]] || return 0
    ROOT_STEPS+=("add $missing")
    STEPS+=(do_user)
}

do_user() { run_step "adding the user's entries" add_user; }

add_user() {
    if ((EUID == 0)); then
        grep -q "^$IMAGE_USER:" /etc/passwd || useradd --system --user-group --no-create-home \
            --home-dir "$IMAGE_USER_HOME" --shell /usr/sbin/nologin \
            --comment "runs container engines" "$IMAGE_USER"
        # Root runs programs from there: the user must not be able to put others in their place.
        install -d -m 755 -o root -g root "$(dirname "$IMAGE_USER_HOME")"
        install -d -m 750 -o "$IMAGE_USER" -g "$IMAGE_USER" "$IMAGE_USER_HOME"
    fi
    # usermod refuses to work when the files are not there.
    as_root touch /etc/subuid /etc/subgid
    has_ids subuid || as_root usermod --add-subuids "$(free_ids subuid)" "$(runner)"
    has_ids subgid || as_root usermod --add-subgids "$(free_ids subgid)" "$(runner)"
}

# The range after the last one that is given away.
free_ids() {
    awk -F: -v size="$IDS" '
        BEGIN { first = 100000 }
        $2 + $3 > first { first = $2 + $3 }
        END { printf "%d-%d", first, first + size - 1 }' "/etc/$1"
}

# Containers and minimal systems have it for root alone; udev would make it open to all.
plan_fuse() {
    [[ -c /dev/fuse && $(stat -c %a /dev/fuse) != 666 ]] || return 0
    row "mode 666 of /dev/fuse" "until the next reboot" "mounts for ordinary users"
    ROOT_STEPS+=("chmod 666 /dev/fuse")
    STEPS+=(do_fuse)
}

do_fuse() { run_step "opening /dev/fuse to ordinary users" as_root chmod 666 /dev/fuse; }
