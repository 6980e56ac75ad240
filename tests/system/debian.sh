#!/bin/bash
# Boots the Debian in the folder ROOT, with FOLDER/upper over it: debian.sh container|machine ROOT FOLDER NAME. Inside,
# /result.sh runs, and writes into /result. Run by debian.py in a mount namespace of its own.
set -euo pipefail
kind=$1 lower=$2 folder=$3 name=$4
mkdir -p "$folder"/{work,root}
mount -t overlay overlay -o "lowerdir=$lower,upperdir=$folder/upper,workdir=$folder/work" "$folder/root"
root=$folder/root
mkdir -p "$root"/etc/systemd/system/multi-user.target.wants
cat > "$root/etc/systemd/system/watch.service" <<UNIT
[Unit]
After=multi-user.target
[Service]
Type=oneshot
TimeoutStartSec=1200
ExecStart=/bin/bash /result.sh
ExecStopPost=/bin/systemctl poweroff --force
UNIT
ln -sf ../watch.service "$root/etc/systemd/system/multi-user.target.wants/watch.service"
if [ "$kind" = container ]; then
    . "$(dirname "$0")/container.sh"
    boot "$root" "$name"
fi
# A virtual machine on the kernel of ROOT, without network.
# The packages of /debs are installed before: to compile byte code takes an emulated processor minutes.
chroot "$root" sh -c 'dpkg -i /debs/*.deb'
mke2fs -q -t ext4 -d "$root" "$folder/disk" 3G
qemu-system-x86_64 -accel tcg -cpu max -smp 2 -m 2048 -nodefaults -nographic -no-reboot -serial stdio \
    -kernel "$root"/boot/vmlinuz-* -initrd "$root"/boot/initrd.img-* -append "root=/dev/vda rw console=ttyS0 quiet" \
    -drive "file=$folder/disk,format=raw,if=virtio,cache=unsafe" < /dev/null
rm -r "$folder/upper/result"
debugfs -R "rdump /result $folder/upper" "$folder/disk" 2> /dev/null
