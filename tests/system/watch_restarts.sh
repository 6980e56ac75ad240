# Part of watch.sh: restarts and crashes, with clients that connect for every request; then what `systemctl status` says.
cat > newcomers.py <<'PYTHON'
import collections
import http.client
import json
import pathlib
import socket
import struct
import sys
import threading

FOLDER = pathlib.Path(sys.argv[1])
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + struct.pack(">IBI", 4, 0, 0)  # RFC 9113, 3.4


def grpc(address):
    with socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET) as client:
        client.settimeout(60)
        client.connect(address)
        yield
        client.sendall(PREFACE)
        if client.recv(9)[3:4] != b"\4":
            raise ConnectionResetError("no SETTINGS came")


def rest(address):
    connection = http.client.HTTPConnection(*address, timeout=60)
    connection.connect()
    yield
    connection.request("GET", "/v2/health/live")
    if connection.getresponse().status != 200:
        raise ConnectionResetError("not live")
    connection.close()


seen = collections.Counter()
over = threading.Event()


def come(client, *address):
    while not over.wait(0.005):
        steps = client(*address)
        try:
            next(steps)
        except OSError as error:
            seen[f"refused: {error}"] += 1
            continue
        try:
            next(steps, None)
            seen[f"answered {address}"] += 1
        except (OSError, http.client.HTTPException) as error:
            seen[f"broken: {error}"] += 1


clients = [(grpc, ("127.0.0.1", 8001)), (grpc, "/run/edge-gateway/grpc.sock"), (rest, ("127.0.0.1", 8000))]
threads = [threading.Thread(target=come, args=client) for client in clients]
for thread in threads:
    thread.start()
(FOLDER / "coming").touch()
while (FOLDER / "coming").exists():
    over.wait(0.01) or threading.Event().wait(0.05)
over.set()
for thread in threads:
    thread.join()
print(json.dumps(seen))
PYTHON
listening() { stat -c %i /run/edge-gateway/grpc.sock; }
# Clients come while COMMAND runs: `meanwhile NAME COMMAND...`
meanwhile() {
    local name=$1
    shift
    python3 newcomers.py "$PWD" > "restarts.$name" &
    until [ -e coming ]; do sleep 0.05; done
    "$@"
    until [ "$(shows ActiveState)" = active ]; do sleep 0.1; done
    rm coming
    wait $!
}
crash() {
    local restarts
    restarts=$(shows NRestarts)
    systemctl kill --kill-whom=main --signal="$1" "$unit"
    until [ "$(shows NRestarts)" -gt "$restarts" ] && [ "$(shows ActiveState)" = active ]; do sleep 0.1; done
}
systemctl restart "$unit"
listening > restarts.listening
meanwhile restart eval 'for _ in 1 2 3; do systemctl restart "$unit"; done'
meanwhile kill eval 'for _ in 1 2 3; do crash KILL; done'
crash SEGV
listening >> restarts.listening
shows NFileDescriptorStore > restarts.stored
shows StatusText > restarts.status

# A model that is copied is served, and one that is removed is not, without a reload.
place=/var/lib/edge-gateway/models
[ -d $place ] || place=$models
serves() { edge-gateway models --json | grep -c '"copied"'; }
install -m 644 $models/meter-reader/1/onnx-int8/model.onnx $place/copied.onnx
for _ in $(seq 100); do [ "$(serves)" -gt 0 ] && break; sleep 0.2; done
serves > restarts.copied
rm $place/copied.onnx
for _ in $(seq 100); do [ "$(serves)" = 0 ] && break; sleep 0.2; done
serves >> restarts.copied

# Another address: the old one is refused, the others stay.
grep -q '^\[http\]$' $file || echo '[http]' >> $file
sed -i 's/^\[http\]$/&\nlisten = ["127.0.0.1:8002"]/' $file
systemctl restart "$unit"
curl --silent --output /dev/null http://127.0.0.1:8000/v2/health/live
echo $? > restarts.moved
curl --silent --output /dev/null http://127.0.0.1:8002/v2/health/live
echo $? >> restarts.moved
shows NFileDescriptorStore >> restarts.stored

# While systemd waits to start it again, and after a configuration that cannot be used.
sed -i 's/^RestartSec=.*/RestartSec=4s/' /etc/systemd/system/edge-gateway.service.d/watch.conf
systemctl daemon-reload
systemctl kill --kill-whom=main --signal=ABRT "$unit"
until [ "$(shows SubState)" = auto-restart ]; do sleep 0.05; done
systemctl status "$unit" --no-pager --lines 0 > restarts.waiting
sed -i 's/^RestartSec=.*/RestartSec=100ms/' /etc/systemd/system/edge-gateway.service.d/watch.conf
systemctl daemon-reload
until [ "$(shows ActiveState)" = active ]; do sleep 0.1; done
sed -i '1i nonsense = 1' $file
systemctl restart "$unit"
systemctl status "$unit" --no-pager --lines 0 > restarts.refused
curl --silent --output /dev/null http://127.0.0.1:8002/v2/health/live
echo $? > restarts.stopped
ls /run/edge-gateway >> restarts.stopped 2>&1
cp --archive edge-gateway.toml.kept $file
systemctl restart "$unit"
shows StatusText > restarts.mended
