# shellcheck shell=bash
# The Python package, in the project's .venv, installed again only when pyproject.toml changes.

readonly VENV=$PROJECT/.venv
readonly STAMP=$VENV/.build-images-stamp

suits() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; }

find_python() {
    local name path
    for name in python3 python3.{14,13,12,11,10}; do
        path=$(type -P "$name") && suits "$path" && printf '%s' "$path" && return 0
    done
    return 1
}

fingerprint() { printf '%s %s' "$PROJECT" "$(sha256sum <"$PROJECT/pyproject.toml")"; }

# The stamp of `test` serves for `images` too.
python_ready() {
    local kind rest
    [[ -r $STAMP && -x $VENV/bin/python && -x $VENV/bin/build-images ]] || return 1
    read -r kind rest <"$STAMP"
    [[ $kind == test || $kind == "$TARGET" ]] && [[ $rest == "$(fingerprint)" ]]
}

# Called with the other system packages: a machine may have no Python, or one without venv.
plan_python_packages() {
    local python
    ! python_ready || return 0
    if python=$(find_python); then
        "$python" -c 'import ensurepip, venv' 2>/dev/null && return 0
        [[ $python == /usr/bin/* ]] || die 4 "$python has no venv and ensurepip modules" \
            "install them, or put another Python (3.10 or later) first on PATH"
    else
        want python3 "the build-images command is written in it"
    fi
    want python3-venv "the project's virtual environment"
}

plan_python() {
    ! python_ready || return 0
    local what="Python package build-images" why="the build-images command"
    [[ $TARGET == images ]] || what+=" and test tools"
    row "$what" "$VENV" "$why"
    STEPS+=(do_python)
}

do_python() {
    local python
    python=$(find_python) || die 4 "no Python 3.10 or later on PATH" "install python3 and python3-venv"
    run_step "installing the Python package into .venv" install_python "$python"
}

install_python() {
    local what=$PROJECT
    [[ $TARGET == images ]] || what+='[test]'
    rm -f "$STAMP"
    # One that was interrupted has no pip; one that came here with a moved checkout has programs
    # that name the old place.
    if ! grep -qF "$VENV/bin/python" "$VENV/bin/pip" || ! "$VENV/bin/python" -m pip --version; then
        "$1" -m venv --clear "$VENV"
    fi
    "$VENV/bin/python" -m pip install --disable-pip-version-check --no-input --editable "$what"
    printf '%s %s\n' "$TARGET" "$(fingerprint)" >"$STAMP.new"
    mv "$STAMP.new" "$STAMP"
}
