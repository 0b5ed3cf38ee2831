# The least that every cell must be able to do: write a file, and start its Python.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
echo 'print("hello from", __import__("sys").version.split()[0])' > "$work/hello.py"
python "$work/hello.py"
df -P "$work" | tail -1
