#!/bin/sh
# A check that makes no sense after another failed: that one's command is run before it, and if it
# fails, this check was not judged.
#
# usage: after.sh NAME COMMAND [ARGUMENT...]
#
# Exit status: 0 if the command passed, else 77. Then the last line is the reason.

name=$1
shift
said=$("$@" 2>&1) && exit 0
printf 'not judged, since %s failed: %s\n' "$name" "$(printf '%s\n' "$said" | tail -n 1)"
exit 77
