#compdef miles
# miles: completion for zsh
_miles() {
    local -a answer described unfinished request suffixes
    local line
    request=("${words[CURRENT]}" "${(@)words[2,CURRENT-1]}")
    answer=("${(@f)$(_MILES_COMPLETE="${(F)request}" ${words[1]} 2>/dev/null)}")
    case "${answer[1]}" in
        :file*) [[ "${words[CURRENT]}" == --*=* ]] && compset -P '*='
            suffixes=(${=${answer[1]#:file}})
            (( $#suffixes )) && _files -g "*.${(j: *.:)suffixes}" || _files
            return ;;
        :folder) [[ "${words[CURRENT]}" == --*=* ]] && compset -P '*='; _path_files -/; return ;;
    esac
    for line in "${answer[@]}"; do
        [[ -z "$line" ]] && continue
        if [[ "${line%%$'\t'*}" == *[:/.] ]]; then unfinished+=("${${line//:/\\:}/$'\t'/:}")
        else described+=("${${line//:/\\:}/$'\t'/:}"); fi
    done
    (( $#described )) && _describe -V 'miles' described
    (( $#unfinished )) && _describe -V 'miles' unfinished -S ''
}
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
compdef _miles miles
