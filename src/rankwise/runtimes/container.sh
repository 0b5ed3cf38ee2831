# Runs a command in a container, by our own program if the image has a Python for that: so it is known how the
# command ended, and ranks that it starts leave their records in the folder of the attempt.
# Arguments: the program, the name of the process, the command.
program=$1 name=$2
shift 2
# Empty where the image has none, and not set outside of containers.
export RANKWISE_PYTHON=
for python in ${RANKWISE_FOLDER:+python3 python}; do
    if "$python" -I -S -c 'import sys; sys.exit(sys.version_info < (3, 8))' 2>/dev/null; then
        RANKWISE_PYTHON=$(command -v "$python")
        case $* in *RANKWISE_MPI4PY*)
            if python -c 'import mpi4py' 2>/dev/null; then export RANKWISE_MPI4PY='-m mpi4py'; fi
        esac
        exec "$RANKWISE_PYTHON" -I -S "$program" inside "$RANKWISE_FOLDER" "$name" "$@"
    fi
done
exec "$@"
