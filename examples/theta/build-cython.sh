#!/bin/bash
# Builds Cython from its source package, the build tool of mpi4py.
set -e
pip wheel --quiet --no-deps --no-cache-dir --wheel-dir "$BUILD_ROOT/wheels" \
    "$BUILD_ROOT/source/cython-$CYTHON.tar.gz"
pip install --quiet --no-deps --force-reinstall "$BUILD_ROOT/wheels/cython-$CYTHON"-*.whl
