# shellcheck shell=bash
# shellcheck disable=SC2034  # the other parts use what is set here
# What the user sees: the plan, one line for each step with its duration, errors with a way out.

LOG=/dev/null                 # set by lock_home
declare -a ROWS=()            # "thing|where|why"
declare -a STEPS=()           # functions, in the order in which they run
declare -a ROOT_STEPS=()      # what of it needs root, in words

say() { printf '%s\n' "$*" >&2; }

# die EXIT_CODE MESSAGE [WAY_OUT]
die() {
    printf 'set-up: error: %s\n' "$2" >&2
    [[ -z ${3-} ]] || printf '  hint: %s\n' "$3" >&2
    exit "$1"
}

row() { ROWS+=("$1|$2|$3"); }

missing_things() {
    local line list=''
    for line in "${ROWS[@]}"; do
        list+="${list:+, }${line%%|*}"
    done
    printf '%s' "$list"
}

print_plan() {
    local line thing where why wide=5 wider=5
    for line in "${ROWS[@]}"; do
        IFS='|' read -r thing where why <<<"$line"
        ((${#thing} <= wide)) || wide=${#thing}
        ((${#where} <= wider)) || wider=${#where}
    done
    say "set-up for \`make $TARGET\` installs:"
    {
        printf "  %-${wide}s  %-${wider}s  %s\n" WHAT WHERE WHY
        for line in "${ROWS[@]}"; do
            IFS='|' read -r thing where why <<<"$line"
            printf "  %-${wide}s  %-${wider}s  %s\n" "$thing" "$where" "$why"
        done
    } >&2
}

# run_step TITLE COMMAND...: runs it with its output in the log; says how long it took, or the end
# of the log and stops. The command gets a process group of its own, so that all of it ends when
# this script is told to end.
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

fail_step() {
    say "set-up: failed: $1 (exit code $2). The end of its output:"
    tail -n "+$(($3 + 1))" "$LOG" | tail -n 15 | sed 's/^/  | /' >&2
    say "  log: $LOG"
    # 4 is a step's own word for "this machine lacks something"; the message is in its output.
    (($2 == 4)) && exit 4
    exit 1
}

interrupted() {
    trap - INT TERM HUP
    [[ -z ${CHILD-} ]] || kill -TERM -- "-$CHILD" 2>/dev/null || true
    [[ -z ${CHILD-} ]] || wait "$CHILD" 2>/dev/null || true
    say "set-up: interrupted; run it again and it goes on where it was"
    exit 130
}
trap interrupted INT TERM HUP
