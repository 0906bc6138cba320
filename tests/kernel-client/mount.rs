//! Mounts by a guest: the guest mounts a file system and uses the file system through the mgr.

use crate::guest::{Guest, HOST};
use crate::lab::Lab;

#[test]
fn a_guest_mounts_and_uses_a_file_system() {
    let home = tempfile::tempdir().unwrap();
    let lab = Lab::start(home.path(), 2);
    let mut guest = Guest::boot();
    for version in ["vers=4.1", "vers=4.2"] {
        guest.mount(lab.mgr.proxy.address().port(), version);
        guest.ok("dd if=/dev/urandom of=/tmp/data bs=1M count=5 2>/dev/null; cp /tmp/data /mnt/data");
        guest.ok("mkdir /mnt/dir; mv /mnt/data /mnt/dir/moved; ln -s moved /mnt/dir/link; sync");
        guest.ok("echo 3 > /proc/sys/vm/drop_caches; cmp /tmp/data /mnt/dir/link");
        assert_eq!(guest.ok("echo hello > /mnt/f; cat /mnt/f; stat -c %s /mnt/f"), "hello\n6");
        let sum = guest.ok("md5sum < /tmp/data").split(' ').next().map(str::to_owned).unwrap();
        let ours = lab.run(["cat", "/dir/moved"]);
        assert_eq!(ours.len(), 5 << 20);
        std::fs::write(home.path().join("ours"), ours).unwrap();
        let check = std::process::Command::new("md5sum").arg(home.path().join("ours")).output().unwrap();
        assert!(String::from_utf8(check.stdout).unwrap().starts_with(&sum));
        assert!(guest.mountstats().count("WRITE") > 0);
        guest.ok("rm -r /mnt/dir /mnt/f; ls -A /mnt | wc -l; umount /mnt");
    }
    lab.fsck();
}

#[test]
fn versions_that_are_not_served_are_refused_at_once() {
    let home = tempfile::tempdir().unwrap();
    let lab = Lab::start(home.path(), 1);
    let mut guest = Guest::boot();
    let port = lab.mgr.proxy.address().port();
    // With NFS version 3, the client first calls another RPC program, MOUNT, which no server of Weir offers.
    let older = format!("3,proto=tcp,mountproto=tcp,nolock,mountport={port}");
    for version in ["4.0", &older] {
        let mount = format!("mount.nfs -o vers={version},noresvport,port={port} {HOST}:/ /mnt 2>&1");
        let done = guest.run(&format!("timeout -s KILL 20 {mount}"));
        assert_eq!(done.status, 32, "{}", done.output);
        assert!(done.output.contains("not supported"), "{}", done.output);
    }
    let said = lab.mgr.said();
    assert!(said.contains("asks for NFS 4.0") && said.contains("vers=4.1 or vers=4.2"), "{said}");
    guest.mount(port, "vers=4.1");
    guest.ok("umount /mnt");
}
