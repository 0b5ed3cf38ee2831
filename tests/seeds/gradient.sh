#!/bin/sh
# Stand in for Gradient's command line, with its words and options: a Notebook is an instance of
# the provider in tests/backends. `shell` is the way into a Notebook, which Gradient leaves to ssh.
#
#     gradient notebooks create --name N --machineType M --projectId P [--clusterId C] [...]
#     gradient notebooks shell --id ID LINE | delete --id ID | list
verb=$2
shift 2
if [ -z "$GRADIENT_API_KEY" ]; then
    echo "Failed to fetch data: No API token found" >&2
    exit 1
fi
provider() {
    sh "$PROVIDER" "$CLOUD" "$@"
}
case $verb in
    create)
        echo "$@" >> "$CLOUD/created.log"
        made=$(provider create "$2") || exit 1
        id=$(echo "$made" | sed -n 's/.*"id": "\([^"]*\)".*/\1/p')
        echo "Created new notebook with id: $id"
        ;;
    shell) provider run "$2" "$3" ;;
    delete) provider delete "$2" ;;
    list) provider list ;;
    *)
        echo "gradient: no such command: $verb" >&2
        exit 2
        ;;
esac
