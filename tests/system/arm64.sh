#!/bin/bash
# Runs a command on an emulated arm64 Debian; called by arm64.py in a mount namespace of its own, so that every mount
# ends with it: arm64.sh ROOT MACHINE REPOSITORY FOLDER COMMAND...
# ROOT stays as it is; REPOSITORY (read-only) and FOLDER are seen under their own names. Nothing of this
# machine's hardware is seen: MACHINE holds /proc/cpuinfo and /sys/devices/system/cpu as an arm64 kernel writes them.
set -euo pipefail
lower=$1 machine=$2 repository=$3 folder=$4
shift 4
place=$(mktemp --directory --tmpdir="$folder")
mount -t tmpfs tmpfs "$place"
mkdir "$place"/{upper,work,root}
root=$place/root
mount -t overlay overlay -o "lowerdir=$lower,upperdir=$place/upper,workdir=$place/work" "$root"

seen() { # seen OUTSIDE INSIDE [OPTIONS]: a folder or file of this machine in the other
    if [ -d "$1" ]; then mkdir -p "$root$2"; else touch "$root$2"; fi
    mount --bind "$1" "$root$2"
    if [ $# -gt 2 ]; then mount -o "remount,bind,$3" "$root$2"; fi
}
seen "$repository" "$repository" ro
seen "$folder" "$folder"
mount -t tmpfs tmpfs "$root/dev"
for node in null zero random urandom; do seen "/dev/$node" "/dev/$node"; done
mkdir "$root/dev/shm"
mount --rbind /proc "$root/proc"
seen "$machine/proc/cpuinfo" /proc/cpuinfo
seen "$machine/sys" /sys ro
unset PYTHONPATH
exec chroot "$root" "$@"
