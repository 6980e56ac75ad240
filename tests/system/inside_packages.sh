# Runs as root inside a booted Debian without network, in which /srv has signed repositories: test_deb.py. One file of
# /result answers one question.
cd /result || exit 1
exec 2> errors
export DEBIAN_FRONTEND=noninteractive
unit=edge-gateway
keys=/etc/apt/keyrings/edge-inference-gateway.asc
file=/etc/edge-gateway/edge-gateway.toml
golden=/usr/share/edge-gateway/models/meter-reader/1/golden.npz
. /etc/os-release
ready() { for _ in $(seq 600); do curl -sf http://127.0.0.1:8000/v2/health/ready >/dev/null && return; sleep 0.2; done; }
shows() { systemctl show "$unit" --value -p "$1"; }
# use NAME: take packages from this repository; says whether apt trusts it.
use() {
    echo "deb [signed-by=$keys] file:/srv/$1 $VERSION_CODENAME main" > /etc/apt/sources.list
    if apt-get -o APT::Update::Error-Mode=any update > "apt.$1" 2>&1; then echo yes; else echo no; fi > "trusted.$1"
}
install() { apt-get -y -o Dpkg::Options::=--force-confold --no-install-recommends "$@"; }
# everything: every path but those that dpkg, apt and logs write by themselves.
everything() { find /etc /usr /var /lib -xdev \( -path /var/lib/dpkg -o -path /var/cache -o -path /var/log -o -path /var/lib/apt \
    -o -path /var/tmp \) -prune -o -print | sort; }
# size NAME: what the service takes on the disk, without and with byte code, and in memory, in kB.
size() {
    echo "$1: $(du -s --apparent-size --exclude='*.pyc' /usr/lib/edge-gateway | cut -f1) $(du -s --apparent-size /usr/lib/edge-gateway | cut -f1)" \
        "$(du -s /usr/lib/edge-gateway | cut -f1) $(awk '/^VmRSS/ {print $2}' "/proc/$(shows MainPID)/status")" >> sizes
}
seconds() { echo "$1: $(cut -d' ' -f1 /proc/uptime)" >> seconds; }

mkdir -p /etc/apt/keyrings
cp /srv/old/edge-inference-gateway.asc $keys
use old
everything > /everything.before
seconds begin
install install edge-gateway > dpkg.install
seconds installed
ready
seconds ready
edge-gateway infer meter-reader --npz $golden --url 127.0.0.1:8000 --output json > infer
seconds answered
systemctl is-active edge-gateway > active
stat -c '%U:%G %a' /var/lib/edge-gateway /var/lib/edge-gateway/models > folders
head -1 /var/lib/edge-gateway/models/README.md > readme
ls /etc/edge-gateway/conf.d /usr/share/edge-gateway/edge-gateway-reference.toml > settings
edge-gateway setup --yes --dry-run > setup
edge-gateway --version > version.before
edge-gateway doctor > runtimes.before
edge-gateway doctor EG-201 > fault
shows MainPID > pid.before
size onnx
install install edge-agent edge-gateway-openvino > dpkg.openvino
systemctl is-active edge-agent > agent
edge-software status > software 2>&1
ready
edge-gateway doctor > runtimes.after
shows MainPID > pid.after
size onnx+openvino+agent

# A camera of the confined service: a film stands for it.
install install edge-gateway-camera > dpkg.camera
/usr/lib/edge-gateway/bin/python3 - <<'PYTHON'
import av
import numpy as np

with av.open("/var/lib/edge-gateway/film.mp4", "w") as film:
    stream = film.add_stream("mpeg4", rate=10)
    stream.width, stream.height, stream.pix_fmt = 320, 240, "yuv420p"
    for step in range(50):
        pixels = np.full((240, 320, 3), 5 * step, np.uint8)
        film.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
    film.mux(stream.encode())
PYTHON
cat > /etc/edge-gateway/conf.d/60-door.toml <<'TOML'
[[camera]]
name = "door"
url = "/var/lib/edge-gateway/film.mp4"
model = "meter-reader"
TOML
systemctl restart $unit
ready
for _ in $(seq 150); do
    edge-gateway cameras --json | grep -q '"answered": [1-9]' && break
    sleep 0.2
done
edge-gateway cameras --json > cameras
edge-gateway cameras check --json > cameras.check || echo "exit code $?" >> cameras.check
rm /etc/edge-gateway/conf.d/60-door.toml
systemctl reload $unit

# A maker's build of a runtime, in a folder that is read first (packaging/README.md, "Jetson").
mkdir /build
cp -r /usr/lib/edge-gateway/lib/python3*/site-packages/onnxruntime /build
mkdir /build/onnxruntime_gpu-9.9.dist-info
printf 'Metadata-Version: 2.1\nName: onnxruntime-gpu\nVersion: 9.9\n' > /build/onnxruntime_gpu-9.9.dist-info/METADATA
(cd /build && python3 -m zipfile -c /build.whl onnxruntime onnxruntime_gpu-9.9.dist-info)
python3 -m zipfile -e /build.whl /usr/local/lib/edge-gateway/site-packages
edge-gateway doctor > runtimes.vendor
rm -r /usr/local/lib/edge-gateway
# No such devices are here: umockdev shows one of each, and udev says what it would do.
for node in accel/accel0 apex/apex_0 hailo_chardev/hailo0; do
    path=/devices/pci0000:00/0000:00:0b.0/$node
    printf 'P: %s\nE: SUBSYSTEM=%s\nE: DEVNAME=/dev/%s\nE: MAJOR=240\nE: MINOR=0\n' \
        $path ${node%/*} ${node#*/} > /node.umockdev
    umockdev-run --device /node.umockdev -- udevadm test --action=add /sys$path
done > nodes 2>&1
getent group > groups

# Tokens: each of two in turn; a reload changes them.
infers() { curl -s -o /dev/null -w '%{http_code} ' -H "Authorization: Bearer $1" http://127.0.0.1:8000/v2/models/meter-reader; }
for name in first second; do
    edge-gateway token new $name --scopes infer --json > token.$name
done
field() { /usr/bin/python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))[sys.argv[2]])' "$@"; }
command install -m 640 -g edge-gateway /dev/null /etc/edge-gateway/tokens
sed -i 's|^#tokens_file = ""|tokens_file = "/etc/edge-gateway/tokens"|' $file
field token.first line > /etc/edge-gateway/tokens
systemctl restart $unit
ready
{ infers none; infers "$(field token.first token)"; infers "$(field token.second token)"; } > tokens.before
field token.second line > /etc/edge-gateway/tokens
systemctl reload $unit
for _ in $(seq 100); do journalctl -u $unit | grep -q 'credentials reloaded' && break; sleep 0.2; done
{ infers none; infers "$(field token.first token)"; infers "$(field token.second token)"; } > tokens.after

use stranger
use both
install upgrade > dpkg.upgrade
cp /srv/both/edge-inference-gateway.asc $keys
use rotated
ready
edge-gateway --version > version.after
curl -s -H "Authorization: Bearer $(field token.second token)" http://127.0.0.1:8000/v2 | sed 's/.*"version": *"\([^"]*\)".*/\1/' | tr -d '\n' > served.after
grep -c '^tokens_file' $file > kept
grep '^# Settings of' $file.dpkg-dist > offered
dpkg --force-confold -i $(find /srv/old/pool -name '*.deb') > dpkg.downgrade
ready
edge-gateway --version > version.down
(cd /usr/lib/edge-gateway/lib/python3*/site-packages && ls -d pip faker polyfactory openvino_telemetry pygments */tests) > unwanted 2>/dev/null
# Every module, and pictures, with what was left out of the wheels.
/usr/lib/edge-gateway/bin/python3 - > imports 2>&1 <<'PYTHON'
import importlib, io, pkgutil

import gateway
from PIL import Image, ImageFont

for module in pkgutil.walk_packages(gateway.__path__, "gateway."):
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:
        print(error.name)
for form in ("JPEG", "PNG", "WEBP"):
    Image.new("RGB", (8, 8)).save(file := io.BytesIO(), form)
    Image.open(file).load()
ImageFont.load_default(20).getbbox("door")
PYTHON
for program in edge-gateway edge-agent edge-software; do $program --help || echo "$program failed"; done > help 2>&1
edge-gateway setup --yes > setup.last || touch setup.failed
install purge edge-agent edge-gateway-camera edge-gateway-openvino edge-gateway > dpkg.purge
everything > /everything.after
comm -13 /everything.before /everything.after > left
getent passwd > users
touch end
