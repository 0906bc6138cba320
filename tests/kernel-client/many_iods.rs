//! Files on many iods, and daemons with more than one address.

use crate::guest::{Guest, HOST};
use crate::lab::Lab;
use crate::servers::{self, free_port};

/// The IPv6 address of the host's loopback interface inside a guest.
const HOST_6: &str = "fec0::2";

#[test]
fn files_on_more_iods_than_a_layout_can_describe_are_intact() {
    let mut guest = Guest::boot();
    guest.ok("dd if=/dev/urandom of=/tmp/data bs=64k count=60 2>/dev/null");
    // The addresses of 32 iods fit into a files layout. A flexible files layout needs more bytes for each iod and does
    // not fit, so such a file must take the mgr path.
    for (layout, straight) in [("files", true), ("flexfiles-striped", false)] {
        let options = ["--stripe-unit", "64k", "--mds-threshold", "0", "--kernel-layout", layout];
        let home = tempfile::tempdir().unwrap();
        let lab = servers::start(home.path(), 32, &options);
        guest.mount(lab.mgr.proxy.address().port(), "vers=4.2");
        guest.ok("cp /tmp/data /mnt/f && dd if=/tmp/data of=/mnt/direct bs=1M oflag=direct 2>/dev/null && sync");
        guest.ok("echo 3 > /proc/sys/vm/drop_caches; cmp /tmp/data /mnt/f && cmp /tmp/data /mnt/direct");
        let proxied = ["proxy_write_bytes", "proxy_read_bytes"].map(|name| servers::number(&lab, "counters", name));
        assert_eq!(proxied == [0, 0], straight, "{layout}: {proxied:?}");
        assert!(straight || proxied.iter().all(|bytes| *bytes >= 2 * 60 * (64 << 10)), "{proxied:?}");
        std::fs::write(home.path().join("ours"), lab.run(["cat", "/f"])).unwrap();
        let ours = std::process::Command::new("md5sum").arg(home.path().join("ours")).output().unwrap();
        let sum = guest.ok("md5sum < /tmp/data");
        assert_eq!(String::from_utf8(ours.stdout).unwrap().split(' ').next(), sum.split(' ').next());
        guest.ok("umount /mnt");
        lab.fsck();
    }
}

#[test]
fn ipv4_and_ipv6_lead_to_the_same_files() {
    let home = tempfile::tempdir().unwrap();
    let port = free_port();
    let (four, six) = (format!("127.0.0.1:{port}"), format!("[::1]:{port}"));
    let options = [
        ["--listen", &six],
        ["--listen", &four],
        ["--export", "/six,clients=::1"],
        ["--export", "/four,clients=127.0.0.0/8"],
        ["--export", "/both,clients=127.0.0.1+::/64"],
        ["--export", "/neither,clients=10.0.0.0/8+fd00::/8"],
        ["--mds-threshold", "0"],
        ["--stripe-unit", "64k"],
    ];
    let before = servers::start(home.path(), 2, &[]);
    for dir in ["/six", "/four", "/both", "/neither"] {
        before.run(["mkdir", dir]);
    }
    drop(before);
    // Each iod advertises two addresses to guests. No server listens at the first address.
    let lab = Lab::start_each_with(home.path(), 2, options.as_flattened(), |i| {
        let (dead, live) = (free_port(), free_port());
        let [listen, good, bad] = match i {
            0 => [format!("[::1]:{live}"), format!("[{HOST_6}]:{live}"), format!("{HOST}:{dead}")],
            _ => [format!("127.0.0.1:{live}"), format!("{HOST}:{live}"), format!("[{HOST_6}]:{dead}")],
        };
        ["--nfs-listen", &listen, "--nfs-advertise", &bad, "--nfs-advertise", &good].map(str::to_owned).to_vec()
    });
    let mut guest = Guest::boot();
    // Wait until the guest's kernel has checked that no other host uses the IPv6 address, because the kernel does not
    // use the address until then.
    guest
        .ok("ip addr add fec0::15/64 dev eth0; while ip addr show dev eth0 | grep -q tentative; do usleep 50000; done");
    guest.ok("dd if=/dev/urandom of=/tmp/data bs=1M count=4 2>/dev/null");
    for (host, seen) in [(format!("[{HOST_6}]"), "both\nsix"), (HOST.to_owned(), "both\nfour")] {
        guest.ok(&format!("mount.nfs4 -o vers=4.2,noresvport,port={port} {host}:/ /mnt"));
        assert_eq!(guest.ok("ls /mnt"), seen);
        guest.ok("cp /tmp/data /mnt/both/f; echo 3 > /proc/sys/vm/drop_caches; cmp /tmp/data /mnt/both/f");
        guest.ok("rm /mnt/both/f; umount /mnt");
    }
    let proxied = ["proxy_write_bytes", "proxy_read_bytes"].map(|name| servers::number(&lab, "counters", name));
    assert_eq!(proxied, [0, 0]);
}
