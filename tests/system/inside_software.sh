# Runs in the container at each boot: does what /result/plan says, a line each, and writes what it saw to /result/NAME.
#   setup            install the configuration, join the fleet, trust its software keys
#   ask NAME         let the agent's user ask for the release NAME of /srv/fleet
#   wait PHASE…      until the record of the last update is in one of these phases
#   see NAME         write what runs now
#   stay             until power is cut
set -u
cd /result
exec 2>> errors
store=/var/lib/edge-agent
phase() { sed -n 's/^ "phase": "\(.*\)",$/\1/p' /var/lib/edge-software/update.json; }
agent_user() { setpriv --reuid=edge-agent --regid=edge-gateway --clear-groups "$@"; }

setup() {
    systemd-sysusers
    printf '[software]\nconfirm_within_s = 30.0\nsteady_s = 3.0\nlook_s = 0.2\nidle_s = 1.0\n' > /etc/edge-gateway/edge-software.toml
    printf '[agent]\nretry_s = 1.0\n' > /etc/edge-gateway/edge-agent.toml
    edge-agent bootstrap /srv/fleet/given > bootstrap
    systemctl start edge-gateway edge-agent
}

ask() {
    agent_user mkdir -p $store/blobs/sha256 $store/metadata/root_history
    agent_user cp -r /srv/fleet/public/blobs/sha256/. "/srv/fleet/$1/." $store/blobs/sha256
    agent_user cp /srv/fleet/public/metadata/*.root.json $store/metadata/root_history
    agent_user /usr/local/lib/edge-gateway/current/bin/python3 - < "/srv/fleet/$1.py" > "ask.$1"
}

wait_for() {
    until [[ " $* " == *" $(phase) "* ]]; do sleep 0.2; done
}

see() {
    edge-gateway --version > "$1.version"
    edge-software status --json > "$1.status"
    until [ "$(systemctl is-active edge-gateway)" != activating ]; do sleep 0.2; done
    systemctl is-active edge-gateway edge-agent > "$1.units"
    tr '\0' ' ' < "/proc/$(systemctl show edge-gateway --value -p MainPID)/cmdline" > "$1.cmdline"
    edge-gateway infer meter-reader --npz /usr/local/share/edge-gateway/models/meter-reader/1/golden.npz \
        --url 127.0.0.1:8000 --output json > "$1.infer"
    journalctl --no-pager -o cat -u edge-software -u edge-agent -u edge-gateway > "$1.journal"
    systemctl show edge-software -p FragmentPath -p NRestarts -p Result > "$1.installer"
    sync
}

while read -r verb rest; do
    case $verb in
        setup) setup ;;
        ask) ask "$rest" ;;
        wait) wait_for $rest ;;
        see) see "$rest" ;;
        stay) touch staying; sleep 1000 ;;
    esac
done < plan
