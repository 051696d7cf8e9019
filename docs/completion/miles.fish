# miles: completion for fish
function __miles_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -lx _MILES_COMPLETE (string join \n -- "$current" $words[2..-1] | string collect --allow-empty)
    set -l answer ($words[1] 2>/dev/null)
    set -l cut (string match -r -- '^--[^=]*=' "$current"; or echo)
    set -l path (string replace -r -- '^--[^=]*=' '' "$current")
    switch "$answer[1]"
        case ':file*'
            set -l found (__fish_complete_path "$path")
            set -l suffixes (string split -n ' ' -- (string replace ':file' '' -- "$answer[1]") | string join '|')
            test -n "$suffixes"; and set found (string match -re "(/|\.($suffixes))(\t|\$)" -- $found)
            printf '%s\n' $cut$found
        case ':folder'
            printf '%s\n' $cut(__fish_complete_directories "$path" '')
        case '*'
            printf '%s\n' $answer
    end
end
complete -c miles -f -a '(__miles_complete)'
