# Part of watch_fleet.sh: settings of the fleet on trial, by a gateway whose start takes longer than half its watchdog.
socket=/run/edge-gateway/control.sock
control() { curl --silent --show-error --unix-socket $socket "http://localhost/v1/settings$1" "${@:2}"; }
on_trial() { control "" | grep -q '"trial_ends_in_s":[0-9]'; }
barks() { journalctl --no-pager -o cat -u "$unit" | grep -ci 'watchdog timeout'; }
process() { echo "$(shows MainPID) $(shows NRestarts) $(barks)"; }

# Sleeps before the first line of the program runs, in the daemon alone.
mkdir slow
cat > slow/sitecustomize.py <<'PYTHON'
import sys
import time

if "run" in sys.orig_argv:
    time.sleep(16)
PYTHON
mkdir -p /run/systemd/system/edge-gateway.service.d
printf '[Service]\nWatchdogSec=30s\nEnvironment=PYTHONPATH=%s/slow\n' "$PWD" \
    > /run/systemd/system/edge-gateway.service.d/zz-slow.conf
sed -i 's/^#duration_s = 60.0/duration_s = 5.0/' /etc/edge-gateway/edge-agent.toml
systemctl daemon-reload
systemctl restart "$unit"

states() {
    while [ -e settings.watched ]; do shows ActiveState; sleep 0.05; done | uniq
}

# One trial: `tried NAME COMMAND`; COMMAND runs once the gateway is on trial.
tried() {
    cp "/srv/fleet/settings-$1.json" /srv/fleet/new && mv /srv/fleet/new /srv/fleet/public/assignments/door-1.json
    process > "settings.$1.before"
    touch settings.watched
    states > "settings.$1.states" &
    edge-agent sync --json > "settings.$1.sync" &
    if [ "$2" ]; then
        until on_trial; do sleep 0.1; done
        "$2"
    fi
    wait $!
    rm settings.watched
    wait
    until [ "$(shows ActiveState)" = active ]; do sleep 0.1; done
    process > "settings.$1.after"
    systemctl status "$unit" --no-pager --lines 0 > "settings.$1.status"
    control "" > "settings.$1.force"
}
killed() { systemctl kill --kill-whom=main --signal=KILL "$unit"; }
reverted() {
    control /revert --header 'content-type: application/json' --data "{\"sha256\": \"$(control "" |
        sed 's/.*"sha256":"\([0-9a-f]*\)".*/\1/')\", \"reason\": \"by hand\"}" > /dev/null
}

tried good
tried unstartable
tried reverted reverted
tried killed killed
rm -r slow /run/systemd/system/edge-gateway.service.d
systemctl daemon-reload
