#!/usr/bin/busybox sh
# The first program of a guest: sets it up, then carries out what the host sends over a serial port. The host saves the
# state of a guest when it is ready, and each test continues from there.
/usr/bin/busybox --install -s /usr/bin 2>/dev/null
export PATH=/usr/sbin:/usr/bin HOME=/root
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t tmpfs tmp /tmp
for module in virtio_pci virtio_console virtio_net; do
    modprobe "$module" || echo "no module $module"
done
ip link set lo up
ip link set eth0 up
ip addr add 10.0.2.15/24 dev eth0
ip route add default via 10.0.2.2
until [ -c /dev/vport?p1 ]; do usleep 20000; done
exec 3<>"$(echo /dev/vport?p1)"
# A request is a line, a script in base64; an answer is a line with its status and the length of what it wrote, and that.
echo ready >&3
while read -r request <&3; do
    echo "$request" | base64 -d >/tmp/.script
    (cd /; sh /tmp/.script) >/tmp/.output 2>&1 </dev/null 3>&-
    echo "$? $(wc -c </tmp/.output)" >/tmp/.head
    cat /tmp/.head /tmp/.output >&3
done
echo o >/proc/sysrq-trigger
sleep 60
