//! Delegations of stock kernels: which requests they save, and how other clients get access to delegated files.

use crate::guest::Guest;
use crate::servers;

#[test]
fn a_guest_keeps_delegations_until_another_guest_needs_the_file() {
    let home = tempfile::tempdir().unwrap();
    let lab = servers::start(home.path(), 2, &[]);
    let delegations = || servers::number(&lab, "mgr", "delegations");
    let (mut one, mut other) = Guest::boot_two();
    let port = lab.mgr.proxy.address().port();
    one.mount(port, "vers=4.2");
    other.mount(port, "vers=4.1");

    // After a guest has opened a file for reading, it must be able to open the file again without a request.
    one.ok("echo first > /mnt/f; cat /mnt/f");
    assert_eq!(delegations(), 1);
    let before = one.mountstats();
    one.ok("for i in 1 2 3 4 5 6 7 8 9 10; do cat /mnt/f; done");
    let after = one.mountstats();
    assert_eq!((after.count("OPEN"), after.count("CLOSE")), (before.count("OPEN"), before.count("CLOSE")));

    // The other guest first reads the file, and then writes it. When it opens the file for writing, the mgr must
    // recall the delegation of the first guest. The first guest must then see the new bytes.
    assert_eq!(other.ok("cat /mnt/f"), "first");
    other.ok("echo second > /mnt/f");
    assert_eq!(one.mountstats().count("DELEGRETURN"), 1);
    assert_eq!(one.ok("cat /mnt/f"), "second");
    other.ok("mv /mnt/f /mnt/g");
    assert_eq!(one.ok("ls /mnt; cat /mnt/g"), "g\nsecond");

    // While one guest holds a write delegation of a file, the mgr must request the size of the file from this guest.
    // Another guest must be able to open the file without a long wait.
    one.ok("echo 1234 > /mnt/w; (exec 3<>/mnt/w; echo 123456789 >&3; touch /tmp/held
        until [ -e /tmp/go ]; do usleep 50000; done; exec 3<&-; touch /tmp/gone) &
        until [ -e /tmp/held ]; do usleep 50000; done");
    assert_eq!(other.ok("stat -c %s /mnt/w"), "10");
    assert_eq!(other.ok("cat /mnt/w; echo more >> /mnt/w"), "123456789");
    one.ok("touch /tmp/go; until [ -e /tmp/gone ]; do usleep 50000; done");
    assert_eq!(one.ok("cat /mnt/w"), "123456789\nmore");

    // A guest that waits for a lock must get the lock as soon as the other guest releases it.
    one.ok("rm -f /tmp/go /tmp/held; flock /mnt/lock sh -c 'touch /tmp/held
        until [ -e /tmp/go ]; do usleep 50000; done' & until [ -e /tmp/held ]; do usleep 50000; done");
    other.ok("flock /mnt/lock touch /tmp/locked &");
    servers::until(|| servers::number(&lab, "mgr", "lock_waits") == 1);
    one.ok("touch /tmp/go");
    other.ok("until [ -e /tmp/locked ]; do usleep 50000; done");

    // When a guest unmounts the file system, it must return all delegations of the mount.
    for guest in [&mut one, &mut other] {
        guest.ok("umount /mnt");
    }
    assert_eq!((delegations(), servers::number(&lab, "mgr", "recalls_pending")), (0, 0));
}
