#!/bin/sh
# A small provider of machines with a command line, which really makes something: a folder and a
# process, in which commands run. Whatever is left of it can be seen in its folder.
#
#     sh provider.sh FOLDER create NAME | ready ID | run ID LINE | delete ID | list
#
# A file FOLDER/fail-VERB makes a verb fail; the number in it says how many times, none: always.
# A file FOLDER/slow-create has `create` take its time before it says what it has made.
root=$1 verb=$2
shift 2
echo "$verb $1" >> "$root/calls.log"
if [ -e "$root/fail-$verb" ]; then
    left=$(cat "$root/fail-$verb")
    if [ "$left" != 0 ]; then
        [ -z "$left" ] || echo $((left - 1)) > "$root/fail-$verb"
        echo "the provider is out of order: $verb" >&2
        exit 1
    fi
fi
place=$root/$1
case $verb in
    ready | run | delete)
        if [ ! -d "$place" ]; then
            echo "there is no instance $1" >&2
            exit 1
        fi
        ;;
esac
case $verb in
    create)
        id=i-$(od -An -N4 -tx1 /dev/urandom | tr -d ' \n')
        mkdir -p "$root/$id/home"
        setsid sleep 600 < /dev/null > /dev/null 2>&1 &
        printf '{"id": "%s", "name": "%s", "pid": %d}\n' "$id" "$1" $! > "$root/$id/about.json"
        [ ! -e "$root/slow-create" ] || sleep 3
        echo "making it ..."
        cat "$root/$id/about.json"
        ;;
    list)
        echo "["
        separator=
        for file in "$root"/i-*/about.json; do
            [ ! -e "$file" ] || { printf '%s' "$separator" && cat "$file"; }
            separator=,
        done
        echo "]"
        ;;
    run)
        # What it starts is known by a variable, as what runs on a machine is by the machine.
        cd "$place/home" || exit 1
        exec env -i HOME="$place/home" PATH="$PATH" TMPDIR="$place" INSTANCE="$1" /bin/sh -c "$2"
        ;;
    delete)
        # It ends with everything on it, and its disk is gone.
        kill -9 "$(sed 's/.*"pid": \([0-9]*\).*/\1/' "$place/about.json")" 2> /dev/null
        for file in $(grep -lzx "INSTANCE=$1" /proc/[0-9]*/environ 2> /dev/null); do
            kill -9 "$(echo "$file" | cut -d/ -f3)" 2> /dev/null
        done
        rm -rf "$place"
        ;;
esac
