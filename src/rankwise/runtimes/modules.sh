# Loads modules, and becomes the command that needs them: COUNT MODULE... COMMAND...
# The shell that finds `module` is a login shell's child, or knows where its definition lies.
if ! type module >/dev/null 2>&1; then
    for file in "${MODULESHOME:-/usr/share/modules}/init/bash" /usr/share/modules/init/bash \
        /usr/share/lmod/lmod/init/bash /etc/profile.d/lmod.sh /etc/profile.d/modules.sh; do
        if [ -r "$file" ]; then . "$file"; break; fi
    done
fi
if ! type module >/dev/null 2>&1; then
    echo "rankwise: this machine has no environment modules: no command \`module\`" >&2
    exit 127
fi
count=$1; shift
while [ "$count" -gt 0 ]; do
    module load "$1" || { echo "rankwise: module load $1 failed" >&2; exit 1; }
    shift; count=$((count - 1))
done
exec "$@"
