# Starts our own part of a pod. $1 is where our files are, $2 which part the pod has.
try='import sys; sys.exit(sys.version_info < (3, 10))'
for python in $RANKWISE_PYTHON python3 python python3.14 python3.13 python3.12 python3.11 \
    python3.10 /usr/bin/python3 /usr/local/bin/python3 /opt/conda/bin/python; do
  if command -v "$python" >/dev/null 2>&1 && "$python" -I -S -c "$try" 2>/dev/null; then
    exec "$python" -I -S "$1/parts/pod.pyz" pod "$2"
  fi
done
said='the image has no Python 3.10 or newer, which the runner of rankwise needs: take another'
said="$said image, or say where it is: python = ... in the table of the compute"
echo "rankwise: $said" >&2
echo "rankwise: $said" >/dev/termination-log
exit 78
