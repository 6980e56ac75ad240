# Runs inside the booted system as root and writes what it sees into /result, one file per question.
cd /result || exit 1
exec 2> errors
unit=edge-gateway
shows() { systemctl show "$unit" --value -p "$1"; }

systemd-sysusers
systemd-tmpfiles --create edge-gateway.conf
id -nG "$unit" > groups
printf '[shared_memory]\nallowed = true\nover_tcp = true\n' > /etc/edge-gateway/conf.d/shared-memory.toml
systemctl start "$unit"
echo $? > start
shows StatusText > status
first=$(shows MainPID)
stat -c '%U:%G %a %F' /run/edge-gateway/grpc.sock > socket
stat -c '%U:%G %a' /var/lib/edge-gateway > state
models=/usr/local/share/edge-gateway/models
edge-gateway infer meter-reader --npz $models/meter-reader/1/golden.npz --url 127.0.0.1:8000 --output json > infer
echo $? > infer.rc

# A camera's program: another user, in our group, with a segment that it gives to that group.
camera() { setpriv --reuid=games --regid=games --groups=edge-gateway "$@"; }
camera bash -c 'cd /dev/shm && head -c 512 /dev/zero > camera && chgrp edge-gateway camera && chmod 660 camera'
asks() { camera curl --silent --show-error "http://127.0.0.1:8000/v2/$1" --data "$2"; }
asks systemsharedmemory/region/frames/register '{"key": "/camera", "byte_size": 512}' > shared.register
placed() { echo "\"parameters\": {\"shared_memory_region\": \"frames\", \"shared_memory_byte_size\": $1, \"shared_memory_offset\": $2}"; }
input="{\"name\": \"image\", \"datatype\": \"FP32\", \"shape\": [1, 1, 8, 8], $(placed 256 0)}"
asks models/meter-reader/infer "{\"inputs\": [$input], \"outputs\": [{\"name\": \"scores\", $(placed 40 256)}]}" > shared.infer
od --address-radix=n --format=f4 --skip-bytes=256 --read-bytes=40 /dev/shm/camera > shared.scores

# Until every variant was tried under the unit's own hardening (a reference and five engines' each).
for _ in $(seq 300); do
    for model in meter-reader activity; do
        edge-gateway explain $model --no-measure --json --state /var/lib/edge-gateway > explain.$model
    done
    grep -q '"p50_us": null\|"measured": null' explain.* || break
    sleep 0.2
done

# Tokens that root wrote for itself alone: found before the service meets them, then mended by the command that is named.
edge-gateway models --json > models.http
edge-gateway config check --json > check.before
file=/etc/edge-gateway/edge-gateway.toml
cp --archive $file edge-gateway.toml.kept
echo 'me secret' > /etc/edge-gateway/tokens
chmod 600 /etc/edge-gateway/tokens
sed -i 's|^#tokens_file = ""|tokens_file = "/etc/edge-gateway/tokens"|' $file
edge-gateway config check --json > check.denied
chgrp edge-gateway /etc/edge-gateway/tokens && chmod g+r /etc/edge-gateway/tokens
edge-gateway config check --json > check.after

systemctl reload "$unit"
echo $? > reload
until edge-gateway models --json | tee models.control | grep -q control.sock; do sleep 0.2; done
cp --archive edge-gateway.toml.kept $file
systemctl reload "$unit"
until edge-gateway models --json | grep -q 127.0.0.1; do sleep 0.2; done
# Longer than two watchdog periods: it is fed.
sleep 5
[ "$(shows MainPID)" = "$first" ] && shows NRestarts > fed

systemctl kill --kill-whom=main --signal=STOP "$unit"
until [ "$(shows NRestarts)" = 1 ] && [ "$(shows ActiveState)" = active ]; do sleep 0.2; done
journalctl --no-pager -o cat -u "$unit" | grep -i 'watchdog timeout' > bitten

. ./watch_fleet.sh
. ./watch_restarts.sh

systemctl stop "$unit"
shows Result > stop
shows ExecMainStatus >> stop
stat -c '%U:%G %a %s' /dev/shm/camera > shared.left
journalctl --no-pager -o cat -u "$unit" > journal

# A model that root copies with a strict umask, and the usual settings; both in force after a restart.
mine=/var/lib/edge-gateway/models/mine
(umask 027 && mkdir $mine && cp -r $models/activity/1 $mine && sed -i 's/^name = "activity"/name = "mine"/' $mine/1/manifest.toml)
rm -f /etc/edge-gateway/tokens
edge-gateway setup --yes --listen network --examples no --restart --json > setup
echo $? > setup.rc
stat -c '%U:%G %a' /etc/edge-gateway/conf.d/50-setup.toml /etc/edge-gateway/tokens > setup.files
setpriv --reuid=games --regid=games --clear-groups edge-gateway config > setup.games
for _ in $(seq 300); do
    edge-gateway models --json > setup.models
    [ "$(grep -c '"READY"' setup.models)" = 2 ] && break
    sleep 0.2
done
systemctl show "$unit" -p MemoryHigh -p MemoryMax > setup.memory
edge-gateway config check --json > setup.check
systemctl stop "$unit"
rm -r $mine /etc/edge-gateway/conf.d/50-setup.toml /etc/edge-gateway/tokens "/etc/systemd/system/$unit.service.d"
systemctl daemon-reload

# A state folder that takes nothing, for reasons that no permission overrides: read-only, then full.
unwritable() {
    systemctl start "$unit"
    echo $? > "$1"
    shows StatusText >> "$1"
    journalctl --no-pager -o cat "_SYSTEMD_INVOCATION_ID=$(shows InvocationID)" > "$1.log"
    systemctl stop "$unit"
}
state=/var/lib/edge-gateway
mount --bind $state $state && mount -o remount,bind,ro $state
unwritable readonly
umount $state
cp --archive $state /result/kept
mount -t tmpfs -o size=1m none $state && cp --archive /result/kept/state.* $state && chown --reference=/result/kept $state
head -c 2m /dev/zero > $state/filler
unwritable full
umount $state
rm -r /result/kept
systemctl --failed --no-legend --plain > failed
