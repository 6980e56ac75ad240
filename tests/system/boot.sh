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
cp "$(dirname "$0")"/watch{,_fleet,_restarts,_settings}.sh "$root/result"
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
. "$(dirname "$0")/container.sh"
boot "$root" edge-gateway-boot -- systemd.unit=watch.target
