# Runs as root inside a virtual machine, whose kernel has every controller: test_limits_boot.py. One file of /result
# answers one question.
cd /result || exit 1
exec 2> errors
unit=edge-gateway
ready() { for _ in $(seq 1500); do curl -sf http://127.0.0.1:8000/v2/health/ready >/dev/null && return; sleep 0.2; done; }
shows() { systemctl show "$unit" --value -p "$1"; }
bound() { awk '/^Max data size/ {print $4}' "/proc/$(shows MainPID)/limits"; }
zeros() { curl -s -o zeros.answer -w '%{http_code}' http://127.0.0.1:8000/v2/models/zeros/infer \
    --data "{\"inputs\": [{\"name\": \"shape\", \"datatype\": \"INT64\", \"shape\": [1], \"data\": [$1]}]}"; }
# inside VERB: as the service sees it, with its user and in its control group (packaging/README.md).
inside() {
    sh -c 'echo $$ > /sys/fs/cgroup/system.slice/edge-gateway.service/cgroup.procs && exec setpriv \
        --reuid=edge-gateway --regid=edge-gateway --init-groups edge-gateway "$@"' sh "$@"
}
# kept: what the state holds of models, and since when.
kept() {
    python3 -c 'import sqlite3; print(sqlite3.connect("/var/lib/edge-gateway/state.sqlite").execute(
        "SELECT key, at_ms FROM signature ORDER BY key").fetchall())'
}
events() { cat "/sys/fs/cgroup/system.slice/$unit.service/memory.events"; }

ready
awk '/^MemTotal/ {print $2 * 1024}' /proc/meminfo > total
bound > bound.usual

# A device that the unit does not list, and that the service's user may open by its mode.
mkdir -p /usr/lib/wsl/lib "/etc/systemd/system/$unit.service.d"
touch /usr/lib/wsl/lib/libcuda.so.1
mknod -m 666 /dev/dxg c 240 0
edge-gateway doctor --json > doctor.outside
sed -i 's|^#dir = ""|dir = "/srv/models"|' /etc/edge-gateway/edge-gateway.toml
printf '[Service]\nMemoryMax=400M\nMemorySwapMax=0\nRestartSec=100ms\n' > "/etc/systemd/system/$unit.service.d/limits.conf"
systemctl daemon-reload
systemctl restart $unit
ready
inside doctor --json > doctor.inside
printf '[Service]\nDeviceAllow=/dev/dxg rw\n' > "/etc/systemd/system/$unit.service.d/device.conf"
systemctl daemon-reload
systemctl restart $unit
ready
inside doctor --json > doctor.allowed

# More memory than the unit has, asked for by a caller: that call fails.
bound > bound.limited
shows MainPID > pid.before
zeros 10 > zeros.small
zeros 200000000 > zeros.large
cp zeros.answer zeros.refusal
zeros 10 > zeros.again
shows MainPID > pid.after
events > events.bounded

# The kernel ends the service for memory; it starts again with what it had found out.
kept > kept.before
first=$(shows MainPID)
shows NRestarts > restarts.before
systemctl set-property --runtime $unit MemoryMax=20M
for _ in $(seq 300); do [ "$(shows MainPID)" != "$first" ] && break; sleep 0.2; done
systemctl set-property --runtime $unit MemoryMax=400M
for _ in $(seq 300); do [ "$(shows ActiveState)" = active ] && break; sleep 0.2; done
ready
shows NRestarts > restarts.after
journalctl -u $unit --grep 'oom-kill|OOM killer' --output cat > killed
kept > kept.after
zeros 10 > zeros.restarted
touch end
