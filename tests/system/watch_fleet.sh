# Part of watch.sh: the device becomes one of a fleet, whose repository lies in /srv/fleet.
agent=edge-agent
store=/var/lib/edge-agent
asks_agent() { systemctl show "$agent" --value -p "$1"; }
index() { curl --silent --show-error --request POST http://127.0.0.1:8000/v2/repository/index; }
infers() { edge-gateway infer door-reader --npz /srv/fleet/golden.npz --url 127.0.0.1:8000 --output json; }
strangers() { find $store '(' ! -user edge-agent -o ! -group edge-gateway ')' -printf '%u:%g %p\n'; }

# Not bootstrapped: nothing to do, and no failure.
touch fleet.status
index > fleet.index.before
systemctl start $agent
asks_agent ActiveState > fleet.before
asks_agent ConditionResult >> fleet.before

# What an operator types, as root; the folder is root's alone.
sed -i 's/^#duration_s = 600.0/duration_s = 2.0/' /etc/edge-gateway/edge-agent.toml
edge-agent bootstrap /srv/fleet/given > fleet.bootstrap
echo $? > fleet.bootstrap.rc
stat -c '%U:%G %a' $store > fleet.store
systemctl start $agent
echo $? > fleet.start
SECONDS=0
until grep -q '"state": "in-step"' fleet.status || [ $SECONDS -gt 60 ]; do
    sleep 0.5
    edge-agent status --json > fleet.status
done
journalctl --no-pager -o cat -u $agent > fleet.journal
index > fleet.index
infers > fleet.infer
grep VmRSS "/proc/$(asks_agent MainPID)/status" > fleet.memory
stat -c '%U:%G %a %F' /run/edge-gateway/control.sock > fleet.socket

# What an operator who asks would be told of both logs, read under the unit's own hardening.
cat > reads.py <<'PYTHON'
import json

from gateway.device.agent.report.diagnostics import last_lines
from gateway.device.agent.settings import DiagnosticsSettings

settings = DiagnosticsSettings()
print(json.dumps({unit: last_lines(unit, settings) for unit in settings.log_units}))
PYTHON
python=$(dirname "$(readlink -f "$(command -v edge-agent)")")/python
reading="s|^ExecStart=.*|ExecStart=$python $PWD/reads.py|; s|^Type=.*|Type=oneshot|"
sed "$reading; /^Restart/d; /^ExecReload/d; s|^\[Service\]|&\nStandardOutput=truncate:$PWD/fleet.lines|" \
    "$(asks_agent FragmentPath)" > /run/systemd/system/reads.service
systemctl daemon-reload
systemctl start reads.service
echo $? > fleet.reads

# By hand, as root: while the unit sleeps, and without it.
edge-agent sync --json > fleet.sync.beside
echo $? > fleet.sync.beside.rc
systemctl reload $agent
echo $? > fleet.reload
systemctl stop $agent
asks_agent Result > fleet.stop
asks_agent ExecMainStatus >> fleet.stop
edge-agent sync --json > fleet.sync
echo $? > fleet.sync.rc
edge-agent verify --json > fleet.verify
strangers > fleet.strangers
setpriv --reuid=edge-gateway --regid=edge-gateway --clear-groups touch $store/mine
echo $? > fleet.daemon.writes

. ./watch_settings.sh

# Neither agent nor fleet: the gateway restarts with nothing but its disk.
mv /srv/fleet /srv/gone
systemctl restart "$unit"
echo $? > fleet.restart
mv /srv/gone/golden.npz /srv/golden.npz && mkdir /srv/fleet && mv /srv/golden.npz /srv/fleet
infers > fleet.infer.again
index > fleet.index.again
journalctl --no-pager -o cat -u $agent > fleet.journal
