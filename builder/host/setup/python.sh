# shellcheck shell=bash
# The Python package, in the project's .venv; it is installed again only if pyproject.toml changes.
# Without a clone, the program is already installed.

readonly VENV=${PROJECT:+$PROJECT/.venv}
readonly STAMP=$VENV/.build-images-stamp

suits() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; }

find_python() {
    local name path
    for name in python3 python3.{14,13,12,11,10}; do
        path=$(type -P "$name") && suits "$path" && printf '%s' "$path" && return 0
    done
    return 1
}

# The Python for the package's own programs: the one it was installed with, if there is one.
own_python() {
    if [[ -n ${BUILD_IMAGES_PYTHON-} ]]; then
        printf '%s' "$BUILD_IMAGES_PYTHON"
    elif [[ $PART != host && -n $VENV && -x $VENV/bin/python ]]; then
        printf '%s' "$VENV/bin/python"
    else
        find_python
    fi
}

is_of_a_clone() { [[ -n $PROJECT && $PART != host ]]; }

fingerprint() { printf '%s %s' "$PROJECT" "$(sha256sum <"$PROJECT/pyproject.toml")"; }

# The stamp of `test` is valid for `images`, too.
python_ready() {
    local kind rest
    is_of_a_clone || return 0
    [[ -r $STAMP && -x $VENV/bin/python && -x $VENV/bin/build-images ]] || return 1
    read -r kind rest <"$STAMP"
    [[ $kind == test || $kind == "$TARGET" ]] && [[ $rest == "$(fingerprint)" ]]
}

# Whether a Python is installed that can create the virtual environment.
python_is_whole() {
    local python
    python=$(find_python) && "$python" -c 'import ensurepip, venv' 2>/dev/null
}

# Called with the other system packages: a machine may have no Python, or one without venv.
plan_python_packages() {
    local python
    [[ $PART != host ]] || {
        find_python >/dev/null || want python3 "runs the build-images command"
        "$(find_python || echo false)" -c 'import ensurepip, venv' 2>/dev/null ||
            want python3-venv "users' virtual environments"
        return 0
    }
    ! { python_ready || python_is_whole; } || return 0
    if python=$(find_python); then
        [[ $python == /usr/bin/* ]] || die 4 "$python has no venv and ensurepip modules" \
            "install them, or put another Python (3.10 or later) first on PATH"
    else
        want python3 "runs the build-images command"
    fi
    want python3-venv "the project's virtual environment"
}

plan_python() {
    ! python_ready || return 0
    [[ ! -e $VENV || -O $VENV ]] || die 4 "$VENV belongs to $(stat -c %U "$VENV")" \
        "sudo rm -rf $VENV"
    [[ $PART == both ]] || python_is_whole || return 0   # the administrator's part comes first
    local what="Python package build-images" why="the build-images command"
    [[ $TARGET == images ]] || what+=" and test tools"
    row "$what" "$VENV" "$why"
    STEPS+=(do_python)
}

readonly PYTHON_STEP="installing the Python package into .venv"

# Runs while the system's packages are installed, unless these include Python.
begin_python() {
    [[ " ${STEPS[*]} " == *" do_packages "*" do_python "* ]] && python_is_whole || return 0
    begin_beside "$PYTHON_STEP" install_python "$(find_python)"
}

do_python() {
    local python
    [[ -z ${BESIDE-} ]] || { end_beside && return; }
    python=$(find_python) || die 4 "no Python 3.10 or later on PATH" "install python3 and python3-venv"
    run_step "$PYTHON_STEP" install_python "$python"
}

install_python() {
    local what=$PROJECT
    [[ $TARGET == images ]] || what+='[test]'
    rm -f "$STAMP"
    # An interrupted one has no pip; in a moved checkout, its programs contain the old path.
    if ! grep -qF "$VENV/bin/python" "$VENV/bin/pip" || ! "$VENV/bin/python" -m pip --version; then
        "$1" -m venv --clear "$VENV"
    fi
    "$VENV/bin/python" -m pip install --disable-pip-version-check --no-input --editable "$what"
    printf '%s %s\n' "$TARGET" "$(fingerprint)" >"$STAMP.new"
    mv "$STAMP.new" "$STAMP"
}
