# Runs run.sh, and writes down which variables it has left behind.
# Everything is done by bash itself: a process more for each stage would cost as much as the rest.
# A value of a secret is not written, under whatever name; neither is what bash sets by itself.
declare -A __rankwise_before=()
__rankwise_list() {
    compgen -e >"$RANKWISE_FOLDER/.names"
    mapfile -t __rankwise_names <"$RANKWISE_FOLDER/.names"
}
__rankwise_is_kept() {
    local secret
    case $1 in
        RANKWISE_*|BASH*|_|SHLVL|PWD|OLDPWD|SLURM_*) return 1 ;;
    esac
    for secret in ${RANKWISE_SECRETS//,/ }; do
        if [[ $1 == "$secret" || ( -n ${!secret-} && ${!1-} == *"${!secret}"* ) ]]; then
            return 1
        fi
    done
}
__rankwise_exports() {
    local name
    local -A after=()
    for name in "${__rankwise_names[@]}"; do
        after[$name]=1
        if [[ -v __rankwise_before[$name] && ${__rankwise_before[$name]} == "${!name}" ]]; then
            continue
        fi
        if __rankwise_is_kept "$name"; then
            printf '%s=%s\0' "$name" "${!name}"
        fi
    done
    for name in "${!__rankwise_before[@]}"; do
        if [[ ! -v after[$name] ]] && __rankwise_is_kept "$name"; then
            printf '%s\0' "$name"
        fi
    done
}
__rankwise_end() {
    local code=$? IFS=$' \t\n'
    set +eu
    if (( code == 0 )); then
        __rankwise_list && __rankwise_exports >"$RANKWISE_FOLDER/exports" || code=1
    fi
    return "$code"
}
__rankwise_list
for __rankwise_name in "${__rankwise_names[@]}"; do
    __rankwise_before[$__rankwise_name]=${!__rankwise_name}
done
trap '__rankwise_end; exit' EXIT
. "$RANKWISE_FOLDER/run.sh"
__rankwise_end
__rankwise_code=$?
# A trap of the lines' own, which may have taken the place of ours, is still to come.
trap -p EXIT >"$RANKWISE_FOLDER/.trap"
mapfile -t __rankwise_trap <"$RANKWISE_FOLDER/.trap"
if [[ ${__rankwise_trap[*]-} == *__rankwise_end* ]]; then
    trap - EXIT
fi
exit "$__rankwise_code"
