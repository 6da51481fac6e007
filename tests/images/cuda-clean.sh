#!/bin/sh
# A CUDA image leaves the driver to the host: none of its libraries is in the image, no stub of one
# is on the library path, and the variables are set that container runtimes read. A run-time image
# holds no compiler, header or static library of CUDA.
#
# usage: cuda-clean.sh CUDA_VERSION LEAST_DRIVER runtime|development [ROOT]
#
# A driver's library of the image hides the host's, or is of another version than the host's kernel
# module (CUDA error 803). A stub answers every call with error 34. What is mounted into the image,
# as the host's driver libraries are, is not the image's and is left out.
# With ROOT the files below it are looked at, not those of /. Exit status: 0 passed, else failed; the
# last line is the finding.

set -u
version=$1 driver=$2 flavour=$3 root=${4:-}
mounts=${MOUNTS:-/proc/self/mountinfo}
faults=''

fault() {
    faults="${faults:+$faults; }$1"
}

# The mounts that are not the image's own, a line each. The image's file system is the one that
# shows /usr; a piece of it, as Apptainer mounts them, shows at its place what is there in the
# image. proc(5): "36 35 98:0 /root /mount/point options ...", blanks written as \040.
foreign_mounts() {
    awk -v usr="$root/usr" '
        function own(point) { return point == "/" ? "" : point }
        {
            device[NR] = $3; shown[NR] = $4; point[NR] = $5
            at = own($5)
            if (index(usr "/", at "/") == 1 && (!image || length(at) >= length(own(point[image]))))
                image = NR
        }
        END {
            at = own(point[image]); top = own(shown[image])
            prefix = substr(top, 1, length(top) - length(at))
            for (n = 1; n <= NR; n++)
                if (n != image && (device[n] != device[image] || shown[n] != prefix point[n]))
                    print point[n]
        }' "$mounts"
}

# find(1) over the image, with what it shall not enter; the rest of its expression are arguments.
search() {
    expression=$*
    set -f
    set -- "${root:-/}" -path "$root/proc" -prune -o -path "$root/sys" -prune
    set -- "$@" -o -path "$root/dev" -prune
    while IFS= read -r mount; do
        case $mount in
            / | "$root") ;;
            *) set -- "$@" -o -path "$(printf '%b' "$(printf '%s' "$mount" | sed 's/\\/\\0/g')")" \
                -prune ;;
        esac
    done <<END
$(foreign_mounts)
END
    # shellcheck disable=SC2086  # words of an expression, and -f keeps its patterns
    find "$@" -o $expression -print 2>/dev/null
    set +f
}

# The first names of many.
some() {
    printf '%s\n' "$1" | head -n 3 | tr '\n' ' ' | sed 's/ $//'
    [ "$(printf '%s\n' "$1" | wc -l)" -le 3 ] || printf ' and more'
}

driver_files() {
    # Toolkits have stubs to link to, and NVIDIA's images a newer driver's libraries in `compat`
    # for the container toolkit to choose: neither is on the library path, as looked at below.
    search '(' -name 'libcuda.so*' -o -name 'libcudadebugger.so*' -o -name 'libnvidia-*.so*' \
        -o -name 'libnvcuvid.so*' -o -name 'libnvoptix.so*' -o -name 'lib*_nvidia.so*' \
        -o -name nvidia-smi -o -name nvidia-persistenced -o -name nvidia-modprobe ')' |
        grep -Ev "/(stubs|compat)/[^/]*$"
}

toolkit_files() {
    # Python packages that bring their own compiler are run with it: they are left alone.
    search '(' -name site-packages -o -name dist-packages ')' -prune -o \
        '(' -name nvcc -o -name cicc -o -name ptxas -o -name cuda_runtime.h -o -name cuda.h \
        -o -name cublas_v2.h -o -name nccl.h -o -name 'cudnn*.h' -o -name 'libcu*.a' \
        -o -name 'libnv*_static.a' -o -name 'libnccl*.a' -o -path '*/stubs/libcu*.so*' ')'
}

check_files() {
    found=$(driver_files)
    [ -z "$found" ] || fault "of the driver, which is the host's: $(some "$found")"
    if [ "$flavour" = runtime ]; then
        found=$(toolkit_files)
        [ -z "$found" ] || fault "of the toolkit, in a run-time image: $(some "$found")"
    fi
}

check_path() {
    found=$(PATH=$PATH:/usr/sbin:/sbin ldconfig -p | grep -E '/(stubs|compat)/' | sed 's/.*=> //')
    [ -z "$found" ] || fault "the loader's cache has stubs: $(some "$found")"
    case :${LD_LIBRARY_PATH:-}: in
        */stubs:* | */stubs/:* | */compat:* | */compat/:*)
            fault "LD_LIBRARY_PATH has stubs: $LD_LIBRARY_PATH" ;;
        *) ;;
    esac
}

# The driver that CUDA's minor-version compatibility asks for, or before CUDA 11 the release itself.
required() {
    if [ "${version%%.*}" -ge 11 ] && [ -n "$driver" ]; then
        printf 'driver>=%s' "$(printf '%s' "$driver" | sed 's/\.0*\([0-9]\)/.\1/g')"
    else
        printf 'cuda>=%s' "$version"
    fi
}

check_variables() {
    [ "${NVIDIA_VISIBLE_DEVICES:-}" = all ] ||
        fault "NVIDIA_VISIBLE_DEVICES is '${NVIDIA_VISIBLE_DEVICES:-}', not all"
    for one in compute utility; do
        case ,${NVIDIA_DRIVER_CAPABILITIES:-}, in
            *,"$one",* | *,all,*) ;;
            *) fault "NVIDIA_DRIVER_CAPABILITIES lacks $one" ;;
        esac
    done
    [ "${NVIDIA_REQUIRE_CUDA:-}" = "$(required)" ] ||
        fault "NVIDIA_REQUIRE_CUDA is '${NVIDIA_REQUIRE_CUDA:-}', not $(required)"
}

check_files
check_path
check_variables
if [ -n "$faults" ]; then
    printf '%s\n' "$faults"
    exit 1
fi
echo "no file of the driver, no stub on the library path; the host must have $(required)"
