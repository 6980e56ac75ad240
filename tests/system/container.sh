# Sourced by the scripts that boot a system in a folder: boots it, and returns when it has powered off.
#   boot ROOT MACHINE [ARGUMENT...]
boot() {
    local root=$1 machine=$2 place= controller group
    shift 2
    if [ ! -d /run/systemd/system ]; then
        # No systemd outside: stay where we are, but in control groups of our own.
        place=--keep-unit
        for controller in systemd devices pids; do
            group=/sys/fs/cgroup/$controller/$machine
            if [ -d "/sys/fs/cgroup/$controller" ]; then mkdir -p "$group"; echo $$ > "$group/cgroup.procs"; fi
        done
        mkdir -p "$root/etc/systemd/system.conf.d"
        printf '[Manager]\nDefaultMemoryAccounting=no\n' > "$root/etc/systemd/system.conf.d/groups.conf"
    fi
    exec systemd-nspawn --quiet --directory="$root" --register=no $place --machine="$machine" --private-network \
        --link-journal=no --console=pipe --boot "$@"
}
