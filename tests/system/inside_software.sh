# Runs in the container at each boot: does what /result/plan says, a line each, and writes what it saw to /result/NAME.
#   setup            install the configuration, join the fleet, trust its software keys
#   assign NAME      let the fleet assign what NAME.json of /srv/fleet says, until the installer has begun
#   wait PHASE…      until the record of the last update is in one of these phases
#   back             go back by hand
#   see NAME         write what runs now
#   stay             until power is cut
set -u
cd /result
exec 2>> errors
record=/var/lib/edge-software/update.json
phase() { sed -n 's/^ "phase": "\(.*\)",$/\1/p' $record; }

setup() {
    systemd-sysusers
    printf '[software]\nconfirm_within_s = 30.0\nsteady_s = 3.0\n' > /etc/edge-gateway/edge-software.toml
    printf '[agent]\nretry_s = 1.0\n' > /etc/edge-gateway/edge-agent.toml
    edge-agent bootstrap /srv/fleet/given > bootstrap
    systemctl start edge-gateway edge-agent
}

assign() {
    local before
    before=$(stat -c %i "$record")
    cp "/srv/fleet/$1.json" /srv/fleet/new && mv /srv/fleet/new /srv/fleet/public/assignments/door-1.json
    until systemctl is-active --quiet edge-agent; do sleep 0.1; done
    systemctl reload edge-agent
    until [ "$(stat -c %i "$record")" != "$before" ]; do sleep 0.1; done
}

wait_for() {
    until [[ " $* " == *" $(phase) "* ]]; do sleep 0.2; done
}

see() {
    edge-gateway --version > "$1.version"
    edge-software status --json > "$1.status"
    while systemctl is-active edge-gateway edge-agent | grep -q activating; do sleep 0.2; done
    systemctl is-active edge-gateway edge-agent > "$1.units"
    tr '\0' ' ' < "/proc/$(systemctl show edge-gateway --value -p MainPID)/cmdline" > "$1.cmdline"
    edge-gateway infer meter-reader --npz /usr/local/share/edge-gateway/models/meter-reader/1/golden.npz \
        --url 127.0.0.1:8000 --output json > "$1.infer"
    # told by an agent that asked after the end
    until edge-agent sync --json > "$1.agent"; [ $? != 3 ]; do sleep 0.5; done
    journalctl --no-pager -o cat -u edge-software -u edge-agent -u edge-gateway > "$1.journal"
    systemctl show edge-software -p FragmentPath -p NRestarts -p Result > "$1.installer"
    sync
}

while read -r verb rest; do
    case $verb in
        setup) setup ;;
        assign) assign "$rest" ;;
        wait) wait_for $rest ;;
        back) edge-software switch-back > back ;;
        see) see "$rest" ;;
        stay) touch staying; sleep 1000 ;;
    esac
done < plan
