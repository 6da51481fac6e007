# shellcheck shell=bash
# shellcheck disable=SC2034  # the other parts use the variables set here
# Output for the user: the plan, a line for each step with its duration, and errors with hints.

LOG=/dev/null                 # set by lock_home
SELF=${BUILD_IMAGES_SETUP:-ci/setup}     # what the user calls this
declare -a ROWS=()            # "thing|where|why"
declare -a STEPS=()           # functions, in the order in which they run
declare -a HOST_ROWS=()       # parts that need root, if the caller is not root
declare -a COMMANDS=()        # commands with which root does them by hand

say() { printf '%s\n' "$*" >&2; }

# die EXIT_CODE MESSAGE [HINT]
die() {
    end_children
    printf 'set-up: error: %s\n' "$2" >&2
    [[ -z ${3-} ]] || printf '  hint: %s\n' "$3" >&2
    exit "$1"
}

row() { ROWS+=("$1|$2|$3"); }

# host_row THING WHERE WHY: a part that needs root.
host_row() {
    if [[ $PART == user ]]; then HOST_ROWS+=("$1|$2|$3"); else row "$@"; fi
}

# host_step FUNCTION
host_step() { [[ $PART == user ]] || STEPS+=("$1"); }

# names_of ROW...: the names of what the rows install.
names_of() {
    local line list=''
    for line in "$@"; do
        list+="${list:+, }${line%%|*}"
    done
    printf '%s' "$list"
}

# The command that needs this set-up.
purpose() {
    if [[ $PART == host ]]; then
        printf '%s host' "$SELF"
    elif [[ -z $PROJECT ]]; then
        printf 'build-images'
    else
        printf 'make %s' "$TARGET"
    fi
}

print_plan() {
    if ((${#ROWS[@]})); then
        say "set-up for \`$(purpose)\` installs:"
        print_rows "${ROWS[@]}"
    fi
    if ((${#HOST_ROWS[@]})); then
        say "an administrator of this host installs:"
        print_rows "${HOST_ROWS[@]}"
    fi
}

print_rows() {
    local line thing where why wide=5 wider=5
    for line in "$@"; do
        IFS='|' read -r thing where why <<<"$line"
        ((${#thing} <= wide)) || wide=${#thing}
        ((${#where} <= wider)) || wider=${#where}
    done
    {
        printf "  %-${wide}s  %-${wider}s  %s\n" WHAT WHERE WHY
        for line in "$@"; do
            IFS='|' read -r thing where why <<<"$line"
            printf "  %-${wide}s  %-${wider}s  %s\n" "$thing" "$where" "$why"
        done
    } >&2
}

# Prints the commands that an administrator can paste.
commands_of_root() {
    local command
    printf 'an administrator runs\n      sudo %s\n' "$(host_command)"
    if ((${#COMMANDS[@]})); then
        printf '    or, by hand,\n'
        for command in "${COMMANDS[@]}"; do
            printf '      sudo %s\n' "$command"
        done
    fi
    printf '    and then: %s' "$(own_command)"
}

# The line that puts what this set-up installs on PATH.
path_line() {
    local program=${SELF% setup}
    [[ -z $PROJECT ]] || program=.venv/bin/build-images
    # shellcheck disable=SC2016  # the user's shell expands it
    printf 'export PATH="$(%s setup --print-path):$PATH"' "$program"
}

# Without a clone there is only one target, which is not named.
own_command() { printf '%s%s' "$SELF" "${PROJECT:+ $TARGET}"; }

host_command() {
    local me=$SELF
    [[ -z $PROJECT ]] || me=$PROJECT/ci/setup
    printf '%s host' "$me"
    [[ $TARGET == images ]] || printf ' %s' "$TARGET"
    printf ' --user %s' "$(id -un)"
}

way_out() {
    if ((${#HOST_ROWS[@]})); then
        commands_of_root
    elif [[ $PART == host ]]; then
        printf '%s host%s' "$SELF" "${USERS[*]/#/ --user }"
    else
        own_command
    fi
}

# run_step TITLE COMMAND...: runs a command with its output in the log and prints its duration; on
# failure prints the end of the log and exits. The command has its own process group, so that all
# of it can be ended with this script.
run_step() {
    local title=$1 begun=$SECONDS from code=0
    shift
    say "  $title ..."
    printf '\n== %s\n' "$title" >>"$LOG"
    from=$(wc -l <"$LOG")
    set -m
    (
        trap - INT TERM EXIT
        "$@"
    ) </dev/null >>"$LOG" 2>&1 9>&- &
    CHILD=$!
    set +m
    wait "$CHILD" || code=$?
    CHILD=
    ((code == 0)) || fail_step "$title" "$code" "$from"
    say "  $title: done in $((SECONDS - begun)) s"
}

# begin_beside TITLE COMMAND...: the same in the background; end_beside prints the result.
begin_beside() {
    BESIDE_TITLE=$1 BESIDE_BEGUN=$SECONDS BESIDE_LOG=$LOG.beside
    shift
    say "  $BESIDE_TITLE, in the background ..."
    set -m
    (
        trap - INT TERM EXIT
        "$@"
    ) </dev/null >"$BESIDE_LOG" 2>&1 9>&- &
    BESIDE=$!
    set +m
}

end_beside() {
    local code=0 from
    wait "$BESIDE" || code=$?
    BESIDE=
    printf '\n== %s\n' "$BESIDE_TITLE" >>"$LOG"
    from=$(wc -l <"$LOG")
    cat "$BESIDE_LOG" >>"$LOG"
    rm -f "$BESIDE_LOG"
    ((code == 0)) || fail_step "$BESIDE_TITLE" "$code" "$from"
    say "  $BESIDE_TITLE: done in $((SECONDS - BESIDE_BEGUN)) s"
}

fail_step() {
    end_children
    say "set-up: failed: $1 (exit code $2). The end of its output:"
    tail -n "+$(($3 + 1))" "$LOG" | tail -n 15 | sed 's/^/  | /' >&2
    say "  log: $LOG"
    # A step exits with 4 if this machine lacks something; the message is in its output.
    (($2 == 4)) && exit 4
    exit 1
}

end_children() {
    local child
    for child in ${CHILD-} ${BESIDE-}; do
        kill -TERM -- "-$child" 2>/dev/null || true
        wait "$child" 2>/dev/null || true
    done
}

interrupted() {
    trap - INT TERM HUP
    end_children
    say "set-up: interrupted; run it again to continue"
    exit 130
}
trap interrupted INT TERM HUP
