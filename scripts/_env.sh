# Sourced by the scripts beside it: steps into the repository and provides `env_ready base|dev`.
#
# .venv holds what constraints.txt names. It is remade when constraints.txt changed, when it was left half-made or when
# the folder moved; when only pyproject.toml changed the package is installed again in place. Otherwise nothing is done.

root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
cd -- "$root"
unset PYTHONHOME PYTHONPATH
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_USER=0 PIP_REQUIRE_VIRTUALENV=0
export ORT_DISABLE_TELEMETRY=1

say() { printf '%s\n' "$*" >&2; }

find_python() {
    local candidate
    for candidate in "${PYTHON:-}" python3.11 /usr/bin/python3.11 python3.12 python3.13 python3; do
        if [ -n "$candidate" ] &&
            "$candidate" -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            printf '%s' "$candidate"
            return
        fi
    done
    say 'error: no Python 3.11 or newer with its venv module was found.'
    say 'Install it (on Debian: apt-get install python3 python3-venv), or set PYTHON to its path.'
    return 1
}

# What an installed environment depends on besides constraints.txt: where the repository is and what it asks for.
wanted() { printf '%s\n' "$root" && cat pyproject.toml; }

env_is_ready() { # base|dev; dev holds everything that base does
    local level
    cmp -s constraints.txt .venv/.constraints || return 1
    for level in dev "$1"; do
        if wanted | cmp -s - ".venv/.ready-$level"; then
            .venv/bin/python -c 'import click' 2>/dev/null
            return
        fi
    done
    return 1
}

stage() { # what it is, the command
    local what=$1 start=$SECONDS
    shift
    printf '[env] %s ... ' "$what" >&2
    if "$@" >>.venv/install.log 2>&1; then
        say "$((SECONDS - start)) s"
        return
    fi
    say failed
    grep -v '^WARNING: Location' .venv/install.log | tail -n 40 >&2
    say "error: the environment could not be made; all of the output is in $root/.venv/install.log"
    return 1
}

env_make() { # base|dev
    local python extras='' also=()
    if [ "$1" = dev ]; then
        extras='[dev]'
        also=("$(grep '^torch==' constraints.txt)") # by version: a plain request takes a CUDA build of gigabytes
    fi
    if [ -e .venv ] && [ ! -e .venv/.made-by-edgeopt ]; then
        say "error: $root/.venv was not made by these scripts; move it away and run again."
        return 1
    fi
    if ! cmp -s constraints.txt .venv/.constraints || [ "$(cat .venv/.where 2>/dev/null)" != "$root" ] ||
        ! .venv/bin/python -c '' 2>/dev/null; then
        python=$(find_python) || return 1
        rm -rf .venv
        mkdir .venv
        touch .venv/.made-by-edgeopt
        stage "creating .venv with $("$python" --version 2>&1)" "$python" -m venv .venv || return 1
    fi
    rm -f .venv/.constraints .venv/.ready-* # until it is whole again, it is half-made
    stage 'installing the build tools' .venv/bin/python -m pip install -c constraints.txt hatchling editables || return 1
    stage "installing edgeopt$extras and what it needs" .venv/bin/python -m pip install -c constraints.txt \
        --no-build-isolation ${also[@]+"${also[@]}"} -e ".$extras" || return 1
    printf '%s\n' "$root" >.venv/.where
    wanted >".venv/.ready-$1"
    cp constraints.txt .venv/.constraints
}

env_ready() { # base|dev
    local failed=0
    if ! env_is_ready "$1"; then
        mkdir -p .cache
        exec 9>.cache/env.lock
        if command -v flock >/dev/null && ! flock -n 9; then
            say '[env] waiting for another run to finish with .venv'
            flock 9
        fi
        env_is_ready "$1" || env_make "$1" || failed=1
        exec 9>&-
    fi
    PATH="$root/.venv/bin:$PATH"
    return $failed
}
