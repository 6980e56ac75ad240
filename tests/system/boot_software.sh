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
    mkdir -p "$root/result" "$root/var/log/journal"
    find "$root/etc/systemd/system" -name '*.wants' -prune -exec rm -r {} +
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
. "$(dirname "$0")/container.sh"
boot "$root" edge-software-boot -- systemd.unit=edge.target
