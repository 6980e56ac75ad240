#!/bin/bash
# Boots systemd over a copy-on-write view of this machine with the installed tree on top; run by test_systemd_boot.py
# inside a mount namespace of its own: boot.sh IMAGE FLEET FOLDER. FLEET becomes /srv/fleet; FOLDER/upper/result holds what
# watch.sh and its parts wrote.
set -euo pipefail
image=$1 fleet=$2 folder=$3
mkdir -p "$folder"/{upper,work,root}
mount -t overlay overlay -o "lowerdir=/,upperdir=$folder/upper,workdir=$folder/work" "$folder/root"
root=$folder/root
cp --archive "$image/." "$root/"
cp --archive "$fleet" "$root/srv/fleet"
mkdir -p "$root"/result "$root"/etc/systemd/system/edge-gateway.service.d
cp "$(dirname "$0")"/watch{,_fleet,_settings}.sh "$root/result"
find "$root/etc/systemd/system" -name '*.wants' -prune -exec rm -r {} +
# A short watchdog, so that it can be seen to bite.
printf '[Service]\nWatchdogSec=2s\nRestartSec=100ms\n' > "$root/etc/systemd/system/edge-gateway.service.d/watch.conf"
printf '[Unit]\nWants=basic.target watch.service\n' > "$root/etc/systemd/system/watch.target"
cat > "$root/etc/systemd/system/watch.service" <<UNIT
[Unit]
After=basic.target
[Service]
Type=oneshot
TimeoutStartSec=600
ExecStart=/bin/bash /result/watch.sh
ExecStopPost=/bin/systemctl poweroff --force
UNIT
if [ -d /run/systemd/system ]; then
    place=
else
    # No systemd outside: stay where we are, but in control groups of our own.
    place=--keep-unit
    for controller in systemd devices pids; do
        group=/sys/fs/cgroup/$controller/edge-gateway-boot
        if [ -d "/sys/fs/cgroup/$controller" ]; then mkdir -p "$group"; echo $$ > "$group/cgroup.procs"; fi
    done
    mkdir -p "$root/etc/systemd/system.conf.d"
    printf '[Manager]\nDefaultMemoryAccounting=no\n' > "$root/etc/systemd/system.conf.d/groups.conf"
fi
exec systemd-nspawn --quiet --directory="$root" --register=no $place --machine=edge-gateway-boot --private-network \
    --link-journal=no --console=pipe --boot -- systemd.unit=watch.target
