# Runs inside the booted system as root and writes what it sees into /result, one file per question.
cd /result || exit 1
exec 2> errors
unit=edge-gateway
shows() { systemctl show "$unit" --value -p "$1"; }

systemd-sysusers
id -nG "$unit" > groups
systemctl start "$unit"
echo $? > start
shows StatusText > status
first=$(shows MainPID)
stat -c '%U:%G %a %F' /run/edge-gateway/grpc.sock > socket
stat -c '%U:%G %a' /var/lib/edge-gateway > state
models=/usr/local/share/edge-gateway/models
edge-gateway infer meter-reader --npz $models/meter-reader/1/golden.npz --url 127.0.0.1:8000 --output json > infer
echo $? > infer.rc

# Until every variant was tried under the unit's own hardening (a reference and five engines' each).
for _ in $(seq 300); do
    for model in meter-reader activity; do
        edge-gateway explain $model --no-measure --json --state /var/lib/edge-gateway > explain.$model
    done
    grep -q '"p50_us": null\|"measured": null' explain.* || break
    sleep 0.2
done

systemctl reload "$unit"
echo $? > reload
# Longer than two watchdog periods: it is fed.
sleep 5
[ "$(shows MainPID)" = "$first" ] && shows NRestarts > fed

systemctl kill --kill-whom=main --signal=STOP "$unit"
until [ "$(shows NRestarts)" = 1 ] && [ "$(shows ActiveState)" = active ]; do sleep 0.2; done
journalctl --no-pager -o cat -u "$unit" | grep -i 'watchdog timeout' > bitten

systemctl stop "$unit"
shows Result > stop
shows ExecMainStatus >> stop
journalctl --no-pager -o cat -u "$unit" > journal
systemctl --failed --no-legend --plain > failed
