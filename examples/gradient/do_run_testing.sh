#!/bin/bash
# Test a runtime on all machines:
#
#     ./do_run_testing.sh [-c "<clusterId>" -w "<workspaceRef>"] "<runtime>" "<projectId>"
#
# Needs the key of the project in PAPERSPACE_API_KEY, as Gradient's own command line does.
usage() {
    echo "usage: $0 [-c clusterId -w workspaceRef] runtime projectId" >&2
    exit 2
}
export CLUSTER_ID= WORKSPACE_REF= PROJECT_ID=
while getopts c:w: option; do
    case $option in
        c) CLUSTER_ID=$OPTARG ;;
        w) WORKSPACE_REF=$OPTARG ;;
        *) usage ;;
    esac
done
shift $((OPTIND - 1))
[ $# = 2 ] || usage
PROJECT_ID=$2
cd "$(dirname "$0")" || exit 1
# Names of runtimes have no blanks there.
exec rankwise run runtimes.yaml --only "runtime=${1// /-}"
