#!/bin/sh
# Runs a command, and fails if it writes anything to standard error: an MPI that complains and goes
# on has often fallen back to a slower transport, or to none.
#
# usage: quiet.sh COMMAND...
#
# Exit status: the command's; 1 if that is 0 and there was a complaint, which then is the last line
# of standard output. What the command wrote goes where it wrote it.

# A check that takes too long gets SIGTERM, and so does the command: wait for what it says.
trap : TERM

exec 3>&1
said=$("$@" 2>&1 1>&3 3>&-)
status=$?
[ -z "$said" ] && exit "$status"
printf '%s\n' "$said" >&2
if [ "$status" -eq 0 ]; then
    printf 'standard error is not empty: %s\n' \
        "$(printf '%s\n' "$said" | grep -av '^[[:space:]-]*$' | head -n 1)"
    status=1
fi
exit "$status"
