# What the build needs to know of this machine. On a Cray: module load, CC=cc, MPICC="cc -shared".
export MPICC=${MPICC:-$(command -v mpicc)}
# Quick to build; leave it out where it is to be fast.
export CFLAGS=${CFLAGS:--O0 -g0}
# Cython as pure Python: that is built in seconds, and mpi4py takes few more with it.
export NO_CYTHON_COMPILE=true
if [[ -z $MPICC ]]; then
    echo "there is no mpicc on the path: mpi4py cannot be built" >&2
    exit 1
fi
