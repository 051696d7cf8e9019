# miles: completion for bash
_miles_complete() {
    local line value request
    local -a words=() answer=()
    COMPREPLY=()
    # bash splits words at '=' and ':'; take the text as it was typed, up to the cursor
    local typed="${COMP_LINE:0:COMP_POINT}"
    local current="${typed##*[[:space:]]}"
    local cut="${current%"$2"}"  # what bash holds for earlier words
    [[ "$2" == [=:] ]] && cut="$current"
    read -r -a words <<<"${typed%"$current"}"
    printf -v request '%s\n' "$current" "${words[@]:1}"
    mapfile -t answer < <(_MILES_COMPLETE="$request" "$1" 2>/dev/null)
    case "${answer[0]}" in
        :file*) compopt -o filenames 2>/dev/null
               local suffix path="${current#"$cut"}" suffixes="${answer[0]#:file}"
               mapfile -t COMPREPLY < <(
                   [[ -z "$suffixes" ]] && compgen -f -- "$path" || compgen -d -- "$path"
                   for suffix in $suffixes; do compgen -f -X "!*.$suffix" -- "$path"; done) ;;
        :folder) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -d -- "${current#"$cut"}") ;;
        *) for line in "${answer[@]}"; do
               value="${line%%$'\t'*}"
               [[ -n "$value" ]] && COMPREPLY+=("${value#"$cut"}")
           done
           [[ "${COMPREPLY[*]}" == *[:/.] ]] && compopt -o nospace 2>/dev/null ;;
    esac
}
complete -F _miles_complete miles
