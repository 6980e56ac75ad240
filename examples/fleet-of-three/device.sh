#!/bin/sh
# Run a device on this machine: bootstrap its agent, then serve. Usage: sh device.sh NAME
set -eu
name=$1
folder=$PWD/devices/$name
mkdir -p "$folder/models"
cat > "$folder/edge-gateway.toml" <<END
[gateway]
id = "$name"
[grpc]
listen = ["unix:$folder/grpc.sock"]
[http]
listen = ["unix:$folder/http.sock"]
[control]
listen = "unix:$folder/control.sock"
[fleet]
store = "$folder/agent"
END
cat > "$folder/edge-agent.toml" <<END
[control]
socket = "$folder/control.sock"
[agent]
drain_s = 1.0
[probation]
duration_s = 5.0                     # 600 on a device in the field
[store]
keep_free_bytes = 0
END
edge-agent bootstrap "$name" --state "$folder/agent" --config "$folder/edge-agent.toml"
exec edge-gateway run --config "$folder/edge-gateway.toml" --models "$folder/models" --state "$folder/state" 2> "$folder/log"
