# shellcheck shell=bash
# Sub-ids of users. Root runs Apptainer and Charliecloud as a separate system user, since neither
# runs as root.

readonly IMAGE_USER=build-images
readonly IMAGE_USER_HOME=/var/lib/build-images/user
readonly IDS=65536            # the ids that a container may use
readonly FIRST_ID=100000 LAST_ID=600100000  # SUB_UID_MIN and SUB_UID_MAX of login.defs(5)
readonly ETC=/etc

# The users of this part: the caller, the system user of root, or the users named with --user.
users_of_part() {
    case $PART in
        user) id -un ;;
        both) printf '%s\n' "$IMAGE_USER" ;;
        host) ((${#USERS[@]} == 0)) || printf '%s\n' "${USERS[@]/#root/$IMAGE_USER}" ;;
    esac
}

uid_of() { id -u "$1" 2>/dev/null; }

# has_ids USER FILE: whether the file has a line that begins with the user's name or id.
has_ids() {
    local uid
    uid=$(uid_of "$1") || uid=$1
    grep -qsE "^($1|$uid):[0-9]+:[1-9]" "$ETC/$2"
}

# free_ids USER: a range without ids from other users' lines and without user ids of this host. The
# search starts at a number that depends on the user, as in builder/host/doctor/machine.py.
free_ids() {
    local uid
    uid=$(uid_of "$1") || uid=1000
    cat "$ETC/subuid" "$ETC/subgid" "$ETC/passwd" 2>/dev/null |
        awk -F: -v user="$1" -v uid="$uid" -v size="$IDS" -v least="$FIRST_ID" -v most="$LAST_ID" '
        BEGIN { n = 0 }  # an unset n is "" as an index
        NF == 3 && ($1 == user || $1 == uid) { next }
        NF == 3 && $2 ~ /^[0-9]+$/ { from[n] = $2; to[n++] = $2 + $3 - 1 }
        NF > 3 && $3 ~ /^[0-9]+$/ { from[n] = $3; to[n++] = $3 }
        END {
            slots = int((most - least) / size)
            begin = (uid - 1000) % slots
            if (begin < 0) begin += slots
            for (k = 0; k < slots; k++) {
                first = least + ((begin + k) % slots) * size
                last = first + size - 1
                for (i = 0; i < n; i++) if (from[i] <= last && first <= to[i]) break
                if (i == n) { printf "%d-%d", first, last; exit }
            }
        }'
}

plan_users() {
    local user lacking='' name
    for user in $(users_of_part); do
        if [[ $user == "$IMAGE_USER" ]]; then
            plan_image_user
        elif ! uid_of "$user" >/dev/null; then
            die 2 "unknown user: $user" "$SELF host --user USER"
        fi
        for name in subuid subgid; do
            if ! has_ids "$user" "$name"; then
                lacking=yes
                host_row "$IDS ${name}s of $user" "$ETC/$name" "ids inside containers"
                COMMANDS+=("$(ids_command "$user" "$name")")
            fi
        done
    done
    [[ -z $lacking ]] || host_step do_users
}

plan_image_user() {
    if ! grep -q "^$IMAGE_USER:" "$ETC/passwd"; then
        row "system user $IMAGE_USER" "$ETC/passwd, $IMAGE_USER_HOME" \
            "Apptainer and Charliecloud run as an ordinary user"
    elif [[ ! -d $IMAGE_USER_HOME ]]; then
        row "home of $IMAGE_USER" "$IMAGE_USER_HOME" "caches of Apptainer and Charliecloud"
    else
        return 0
    fi
    STEPS+=(do_image_user)
}

do_image_user() { run_step "adding the user $IMAGE_USER" add_image_user; }

add_image_user() {
    grep -q "^$IMAGE_USER:" "$ETC/passwd" || useradd --system --user-group --no-create-home \
        --home-dir "$IMAGE_USER_HOME" --shell /usr/sbin/nologin \
        --comment "runs container engines" "$IMAGE_USER"
    # Root runs programs from there, so this user must not be able to replace them.
    install -d -m 755 -o root -g root "$(dirname "$IMAGE_USER_HOME")"
    install -d -m 750 -o "$IMAGE_USER" -g "$IMAGE_USER" "$IMAGE_USER_HOME"
}

do_users() { run_step "adding sub-ids" add_ids; }

add_ids() {
    local user name
    touch "$ETC/subuid" "$ETC/subgid"       # usermod fails if they are missing
    for user in $(users_of_part); do
        for name in subuid subgid; do
            has_ids "$user" "$name" || bash -c "$(ids_command "$user" "$name")"
        done
    done
}

# ids_command USER FILE: how to add sub-ids; usermod does not know users of a directory service.
ids_command() {
    local range
    range=$(free_ids "$1")
    if grep -q "^$1:" "$ETC/passwd"; then
        printf 'usermod --add-%ss %s %s' "$2" "$range" "$1"
    else
        printf "sh -c 'echo %s:%d:%d >>%s'" "$1" "${range%-*}" "$IDS" "$ETC/$2"
    fi
}
