"""Completion scripts for bash, zsh and fish, and where each shell looks for them."""

import os
from pathlib import Path
from string import Template

from miles.errors import MilesError
from miles_cli.completion import VARIABLE

BASH = Template("""\
# miles: completion for bash
_miles_complete() {
    local line value request
    local -a words=() answer=()
    COMPREPLY=()
    # bash splits words at '=' and ':'; take the text as it was typed, up to the cursor
    local typed="$${COMP_LINE:0:COMP_POINT}"
    local current="$${typed##*[[:space:]]}"
    local cut="$${current%"$$2"}"  # what bash holds for earlier words
    [[ "$$2" == [=:] ]] && cut="$$current"
    read -r -a words <<<"$${typed%"$$current"}"
    printf -v request '%s\\n' "$$current" "$${words[@]:1}"
    mapfile -t answer < <($variable="$$request" "$$1" 2>/dev/null)
    case "$${answer[0]}" in
        :file*) compopt -o filenames 2>/dev/null
               local suffix path="$${current#"$$cut"}" suffixes="$${answer[0]#:file}"
               mapfile -t COMPREPLY < <(
                   [[ -z "$$suffixes" ]] && compgen -f -- "$$path" || compgen -d -- "$$path"
                   for suffix in $$suffixes; do compgen -f -X "!*.$$suffix" -- "$$path"; done) ;;
        :folder) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -d -- "$${current#"$$cut"}") ;;
        *) for line in "$${answer[@]}"; do
               value="$${line%%$$'\\t'*}"
               [[ -n "$$value" ]] && COMPREPLY+=("$${value#"$$cut"}")
           done
           [[ "$${COMPREPLY[*]}" == *[:/.] ]] && compopt -o nospace 2>/dev/null ;;
    esac
}
complete -F _miles_complete miles
""")

ZSH = Template("""\
#compdef miles
# miles: completion for zsh
_miles() {
    local -a answer described unfinished request suffixes
    local line
    request=("$${words[CURRENT]}" "$${(@)words[2,CURRENT-1]}")
    answer=("$${(@f)$$($variable="$${(F)request}" $${words[1]} 2>/dev/null)}")
    case "$${answer[1]}" in
        :file*) [[ "$${words[CURRENT]}" == --*=* ]] && compset -P '*='
            suffixes=($${=$${answer[1]#:file}})
            (( $$#suffixes )) && _files -g "*.$${(j: *.:)suffixes}" || _files
            return ;;
        :folder) [[ "$${words[CURRENT]}" == --*=* ]] && compset -P '*='; _path_files -/; return ;;
    esac
    for line in "$${answer[@]}"; do
        [[ -z "$$line" ]] && continue
        if [[ "$${line%%$$'\\t'*}" == *[:/.] ]]; then unfinished+=("$${$${line//:/\\\\:}/$$'\\t'/:}")
        else described+=("$${$${line//:/\\\\:}/$$'\\t'/:}"); fi
    done
    (( $$#described )) && _describe -V 'miles' described
    (( $$#unfinished )) && _describe -V 'miles' unfinished -S ''
}
(( $$+functions[compdef] )) || { autoload -Uz compinit && compinit }
compdef _miles miles
""")

FISH = Template("""\
# miles: completion for fish
function __miles_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -lx $variable (string join \\n -- "$$current" $$words[2..-1] | string collect --allow-empty)
    set -l answer ($$words[1] 2>/dev/null)
    set -l cut (string match -r -- '^--[^=]*=' "$$current"; or echo)
    set -l path (string replace -r -- '^--[^=]*=' '' "$$current")
    switch "$$answer[1]"
        case ':file*'
            set -l found (__fish_complete_path "$$path")
            set -l suffixes (string split -n ' ' -- (string replace ':file' '' -- "$$answer[1]") | string join '|')
            test -n "$$suffixes"; and set found (string match -re "(/|\\.($$suffixes))(\\t|\\$$)" -- $$found)
            printf '%s\\n' $$cut$$found
        case ':folder'
            printf '%s\\n' $$cut(__fish_complete_directories "$$path" '')
        case '*'
            printf '%s\\n' $$answer
    end
end
complete -c miles -f -a '(__miles_complete)'
""")

SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}


def script_of(shell: str, variable: str) -> str:
    """The script that a shell sources; ``variable`` is how ``miles`` is told to answer Tab."""
    return SCRIPTS[shell].substitute(variable=variable)


def detect_shell() -> str | None:
    """The shell that started this process, else ``$SHELL``; None when neither is one of ``SCRIPTS``."""
    import shellingham  # type: ignore[import-untyped]

    try:
        name: str = shellingham.detect_shell()[0]
    except shellingham.ShellDetectionFailure:
        name = Path(os.environ.get("SHELL", "")).name
    return name if name in SCRIPTS else None


def script_for_this_shell() -> str:
    """The completion script of the shell that asks."""
    return script_of(_this_shell(), VARIABLE)


def install_for_this_shell() -> Path:
    """Install completion for the shell that asks; the script's path."""
    return install(_this_shell(), VARIABLE)


def _this_shell() -> str:
    shell = detect_shell()
    if shell is None:
        names = ", ".join(SCRIPTS)
        raise MilesError(f"Cannot tell which shell this is. Start miles from one of {names}, or set SHELL to its path.")
    return shell


def install(shell: str, variable: str) -> Path:
    """Write the script where ``shell`` finds it at its next start; doing it again changes nothing."""
    home = Path.home()
    if shell == "fish":
        config = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
        return _write(config / "fish" / "completions" / "miles.fish", script_of(shell, variable))
    data = Path(os.environ.get("XDG_DATA_HOME") or home / ".local" / "share")
    path = _write(data / "miles" / f"completion.{shell}", script_of(shell, variable))
    rc = Path(os.environ.get("ZDOTDIR") or home) / ".zshrc" if shell == "zsh" else home / ".bashrc"
    line = f'[ -f "{path}" ] && source "{path}"'
    before = rc.read_text() if rc.exists() else ""
    if line not in before.splitlines():
        _write(rc, f"{before}{'' if not before or before.endswith(chr(10)) else chr(10)}{line}\n")
    return path


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path
