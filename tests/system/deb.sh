#!/bin/bash
# Boots the Debian in the folder ROOT, in which /debs has two versions of the packages: deb.sh ROOT. ROOT/result holds what
# the script inside wrote. Run by test_deb.py in a mount namespace of its own.
set -euo pipefail
root=$1
mkdir -p "$root/result" "$root/etc/systemd/system"
cat > "$root/result.sh" <<'INSIDE'
cd /result || exit 1
exec 2> errors
old=/debs/0.2.0
export DEBIAN_FRONTEND=noninteractive
ready() { for _ in $(seq 600); do curl -sf http://127.0.0.1:8000/v2/health/ready >/dev/null && return; sleep 0.2; done; }
keys=/etc/apt/keyrings/edge-inference-gateway.asc
mkdir -p /etc/apt/keyrings
cp /srv/old/edge-inference-gateway.asc $keys
# use NAME: take packages from this repository; says whether apt trusts it.
use() {
    echo "deb [signed-by=$keys] file:/srv/$1 bookworm main" > /etc/apt/sources.list
    if apt-get -o APT::Update::Error-Mode=any update > "apt.$1" 2>&1; then echo yes; else echo no; fi > "trusted.$1"
}
install() { apt-get -y -o Dpkg::Options::=--force-confold --no-install-recommends "$@"; }
use old
install install edge-gateway edge-agent > dpkg.install
ready
systemctl is-active edge-gateway > active
systemctl is-active edge-agent > agent
edge-gateway --version > version.before
models=/usr/share/edge-gateway/models
edge-gateway infer meter-reader --npz $models/meter-reader/1/golden.npz --url 127.0.0.1:8000 --output json > infer
edge-software status > software 2>&1
edge-gateway doctor > runtimes.before
systemctl show edge-gateway --value -p MainPID > pid.before
install install edge-gateway-openvino > dpkg.openvino
ready
edge-gateway doctor > runtimes.after
systemctl show edge-gateway --value -p MainPID > pid.after
# A maker's build of a runtime, in a folder that is read first (packaging/README.md, "Jetson").
mkdir /build
cp -r /usr/lib/edge-gateway/lib/python3*/site-packages/onnxruntime /build
mkdir /build/onnxruntime_gpu-9.9.dist-info
printf 'Metadata-Version: 2.1\nName: onnxruntime-gpu\nVersion: 9.9\n' > /build/onnxruntime_gpu-9.9.dist-info/METADATA
(cd /build && python3 -m zipfile -c /build.whl onnxruntime onnxruntime_gpu-9.9.dist-info)
vendors=/usr/local/lib/edge-gateway/site-packages
python3 -m zipfile -e /build.whl $vendors
edge-gateway doctor > runtimes.vendor
rm -r $vendors
# No such devices are here: umockdev shows one of each, and udev says what it would do.
for node in accel/accel0 apex/apex_0 hailo_chardev/hailo0; do
    path=/devices/pci0000:00/0000:00:0b.0/$node
    printf 'P: %s\nE: SUBSYSTEM=%s\nE: DEVNAME=/dev/%s\nE: MAJOR=240\nE: MINOR=0\n' \
        $path ${node%/*} ${node#*/} > /node.umockdev
    umockdev-run --device /node.umockdev -- udevadm test --action=add /sys$path
done > nodes 2>&1
getent group > groups
echo '# changed here' >> /etc/edge-gateway/edge-gateway.toml
use stranger
use both
install upgrade > dpkg.upgrade
cp /srv/both/edge-inference-gateway.asc $keys
use rotated
ready
edge-gateway --version > version.after
curl -s http://127.0.0.1:8000/v2 | sed 's/.*"version": *"\([^"]*\)".*/\1/' | tr -d '\n' > served.after
grep -c '^# changed here' /etc/edge-gateway/edge-gateway.toml > kept
dpkg -i $old/edge-gateway_*.deb $old/edge-agent_*.deb $old/edge-gateway-openvino_*.deb > dpkg.downgrade
ready
edge-gateway --version > version.down
(cd /usr/lib/edge-gateway/lib/python3*/site-packages && ls -d pip faker polyfactory openvino_telemetry */tests) > unwanted 2>/dev/null
install purge edge-agent edge-gateway-openvino edge-gateway > dpkg.purge
ls -d /usr/lib/edge-gateway /etc/edge-gateway /var/lib/edge-gateway /var/lib/edge-agent /usr/share/edge-gateway > left 2>/dev/null
getent passwd > users
touch end
INSIDE
cat > "$root/etc/systemd/system/watch.service" <<UNIT
[Unit]
After=multi-user.target
[Service]
Type=oneshot
TimeoutStartSec=1200
ExecStart=/bin/bash /result.sh
ExecStopPost=/bin/systemctl poweroff --force
UNIT
mkdir -p "$root/etc/systemd/system/multi-user.target.wants"
ln -sf ../watch.service "$root/etc/systemd/system/multi-user.target.wants/watch.service"
. "$(dirname "$0")/container.sh"
boot "$root" edge-gateway-deb
