#!/bin/bash
# Boots systemd once over FOLDER/upper, which keeps what earlier boots wrote; run by test_software_boot.py inside a mount
# namespace of its own: boot_software.sh IMAGE FLEET FOLDER. What inside_software.sh writes is in FOLDER/upper/result.
set -euo pipefail
image=$1 fleet=$2 folder=$3
first=$([ -d "$folder/upper" ] || echo yes)
mkdir -p "$folder"/{upper,work,root}
mount -t overlay overlay -o "lowerdir=/,upperdir=$folder/upper,workdir=$folder/work" "$folder/root"
root=$folder/root
if [ "$first" ]; then
    cp --archive "$image/." "$root/"
    cp --archive "$fleet" "$root/srv/fleet"
    mkdir -p "$root/result" "$root/etc/systemd/system.conf.d" "$root/var/log/journal"
    find "$root/etc/systemd/system" -name '*.wants' -prune -exec rm -r {} +
    printf '[Manager]\nDefaultMemoryAccounting=no\n' > "$root/etc/systemd/system.conf.d/groups.conf"
    cat > "$root/etc/systemd/system/edge.target" <<UNIT
[Unit]
Wants=basic.target edge-gateway.service edge-agent.service inside.service
UNIT
    cat > "$root/etc/systemd/system/inside.service" <<UNIT
[Unit]
After=basic.target
[Service]
Type=oneshot
TimeoutStartSec=200
ExecStart=/bin/bash /result/inside_software.sh
ExecStopPost=/bin/systemctl poweroff --force
UNIT
fi
cp "$(dirname "$0")/inside_software.sh" "$folder/plan" "$root/result"
place=
if [ ! -d /run/systemd/system ]; then
    # No systemd outside: stay where we are, but in control groups of our own.
    place=--keep-unit
    for controller in systemd devices pids; do
        group=/sys/fs/cgroup/$controller/edge-software-boot
        if [ -d "/sys/fs/cgroup/$controller" ]; then mkdir -p "$group"; echo $$ > "$group/cgroup.procs"; fi
    done
fi
exec systemd-nspawn --quiet --directory="$root" --register=no $place --machine=edge-software-boot --private-network \
    --link-journal=no --console=pipe --boot -- systemd.unit=edge.target
