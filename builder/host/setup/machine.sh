# shellcheck shell=bash
# shellcheck disable=SC2034  # the other parts use the variables set here
# Facts about this machine: architecture, user, release and Debian mirror; the part to do; the lock.

# choose_part ACTION: root does both parts in a clone that root owns.
choose_part() {
    local owner
    if [[ $PART == host ]]; then
        ((EUID == 0)) || [[ $1 != install ]] ||
            die 2 "the administrator's part must run as root" "sudo $(host_command)"
        return 0
    fi
    ((${#USERS[@]} == 0)) || die 2 "--user: administrator's part only" "$SELF host --user USER"
    ((EUID == 0)) || return 0
    PART=both
    [[ -n $PROJECT ]] || return 0
    # If no user has this id, the folder was mounted into a container.
    owner=$(stat -c %U "$PROJECT")
    [[ $owner == root || $owner == UNKNOWN ]] ||
        die 2 "this clone belongs to $owner, who could not change files that root creates in it" \
            "run $PROJECT/ci/setup host --user $owner; then $owner runs $SELF $TARGET"
}

look_around() {
    umask 022
    # On Debian the folders of daemons are not in an ordinary user's PATH.
    PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
    ARCH=$(uname -m)
    # The same rules as in builder/system/home.py.
    SHARED=${BUILD_IMAGES_SHARED-$(shared_of_site)}
    [[ -n $SHARED || $PART != host ]] || SHARED=/opt/build-images
    if [[ $PART == host ]]; then
        HOME_DIR=$SHARED
    elif [[ -n ${BUILD_IMAGES_HOME-} ]]; then
        HOME_DIR=$BUILD_IMAGES_HOME
    elif ((EUID == 0)); then
        # Not below /root: engines that run as an ordinary user must be able to reach it.
        HOME_DIR=/var/lib/build-images
    elif [[ ${XDG_DATA_HOME-} == /* ]]; then
        HOME_DIR=$XDG_DATA_HOME/build-images
    else
        [[ ${HOME-} == /* ]] || HOME=$(getent passwd "$EUID" | cut --delimiter=: --fields=6) ||
            die 4 'this user has no home folder' 'set BUILD_IMAGES_HOME, or HOME'
        HOME_DIR=$HOME/.local/share/build-images
    fi
    [[ $HOME_DIR == /* ]] || HOME_DIR=$PWD/$HOME_DIR
    TOOLS=$HOME_DIR/tools
    readonly ARCH HOME_DIR TOOLS SHARED
}

# The shared folder in the project's site.yaml, else the default.
shared_of_site() {
    local file=${BUILD_IMAGES_SITE:-$PROJECT/site.yaml} named=''
    [[ ! -r $file ]] || named=$(sed -n 's/^shared:[[:space:]]*\([^#[:space:]]*\).*/\1/p' "$file")
    printf '%s' "${named:-/opt/build-images}"
}

# Only one set-up runs at a time; a second one waits. Unfinished files of a killed one are removed.
lock_home() {
    mkdir -p "$TOOLS" 2>/dev/null ||
        die 4 "cannot create $TOOLS" "set BUILD_IMAGES_HOME to a folder that you can write"
    reachable_home
    exec 9>"$HOME_DIR/.setup.lock"
    if ! flock --nonblock 9; then
        say "set-up: waiting for another set-up to finish"
        flock 9
    fi
    LOG=$HOME_DIR/setup.log
    : >"$LOG"
    rm -rf "$TOOLS"/.new.* "$HOME_DIR"/.apt.*
}

# Other users must be able to enter every folder above root's tools: `build-images`, or all users.
reachable_home() {
    ((EUID == 0)) || return 0
    local folder=$HOME_DIR mode name=BUILD_IMAGES_HOME
    [[ $PART != host ]] || name=BUILD_IMAGES_SHARED
    while [[ $folder != / ]]; do
        mode=$(stat -c %a "$folder")
        ((0$mode & 1)) || die 4 "$folder is closed to other users, but they must reach $HOME_DIR \
(Apptainer does not run as root)" "set $name to a folder open to all, or: chmod a+x $folder"
        folder=$(dirname "$folder")
    done
}

release_codename() {
    # shellcheck source=/dev/null
    (. /etc/os-release 2>/dev/null && printf '%s' "${VERSION_CODENAME-}")
}

release_name() {
    # shellcheck source=/dev/null
    (. /etc/os-release 2>/dev/null && printf '%s' "${PRETTY_NAME-this system}")
}

# mirror_of APT_FOLDER CODENAME: the first archive in apt's sources with the suite CODENAME, else
# the first with another suite of Debian; nothing if there is none. Security and other partial
# archives do not count, since they have no sid.
mirror_of() {
    local files=() file
    for file in "$1"/sources.list "$1"/sources.list.d/*.list "$1"/sources.list.d/*.sources; do
        [[ ! -r $file ]] || files+=("$file")
    done
    ((${#files[@]})) || return 0
    awk -v codename="$2" '
        BEGIN {
            names = "bullseye bookworm trixie forky duke sid oldoldstable oldstable stable testing unstable"
            count = split(names, list, " ")
            for (i = 1; i <= count; i++) debian[list[i]] = 1
        }
        # One archive: type, address and suites, from either format.
        function archive(types, uri, suites, enabled,    i, n, one) {
            if (types !~ /(^| )deb( |$)/ || enabled ~ /^(no|false|off|0)$/ || uri ~ /^cdrom:/) return
            n = split(suites, one, " ")
            for (i = 1; i <= n; i++) {
                if (!(one[i] in debian)) continue
                if (one[i] == codename && exact == "") exact = uri
                if (other == "") other = uri
            }
        }
        function stanza() {
            split(field["uris"], uri_list, " ")
            archive(field["types"], uri_list[1], field["suites"], tolower(field["enabled"]))
            split("", field); key = ""
        }
        FNR == 1 { stanza(); deb822 = FILENAME ~ /\.sources$/ }
        { sub(/\r$/, "") }
        /^[ \t]*#/ { next }
        deb822 && /^[ \t]*$/ { stanza(); next }
        deb822 && /^[ \t]/ { field[key] = field[key] " " $0; next }
        deb822 {
            key = tolower(substr($0, 1, index($0, ":") - 1))
            field[key] = substr($0, index($0, ":") + 1)
            sub(/^[ \t]+/, "", field[key])
            next
        }
        $1 == "deb" {
            sub(/#.*/, "")
            sub(/\[[^]]*\]/, "")
            archive("deb", $2, $3, "")
        }
        END { stanza(); print exact != "" ? exact : other }
    ' "${files[@]}" | resolve_mirror_list
}

# Debian's cloud images name a file with a list of mirrors; the first one is used.
resolve_mirror_list() {
    local uri file
    read -r uri || return 0
    case $uri in
        mirror+file:*)
            file=${uri#mirror+file:}
            file=/${file##+(/)}
            [[ -r $file ]] || return 0
            awk '!/^[ \t]*(#|$)/ { print $1; exit }' "$file"
            ;;
        *) printf '%s\n' "$uri" ;;
    esac
}
shopt -s extglob

print_mirror() {
    local mirror=${BUILD_IMAGES_MIRROR:-$(mirror_of "$1" "$2")}
    [[ -n $mirror ]] || die 4 "no Debian mirror in apt's sources in $1" \
        "set BUILD_IMAGES_MIRROR to the address of one (http://HOST/debian)"
    printf '%s\n' "${mirror%/}"
}
