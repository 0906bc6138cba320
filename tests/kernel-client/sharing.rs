//! Two guests that use the same files: one guest truncates, removes, renames or lists files that the other guest uses.

use crate::guest::{Guest, full};
use crate::servers;

/// Starts a process in the guest that opens `file` as descriptor 3 and runs the command `first`. Then the process waits
/// for [`let_go`] and runs the command `then`.
pub fn hold(guest: &mut Guest, file: &str, first: &str, then: &str) {
    guest.ok(&format!(
        "rm -f /tmp/go /tmp/held /tmp/gone
        (exec 3<>{file}; {first}; touch /tmp/held; until [ -e /tmp/go ]; do usleep 50000; done; {then}; exec 3<&-
        touch /tmp/gone) >/tmp/said 2>&1 &
        until [ -e /tmp/held ]; do usleep 50000; done"
    ));
}

/// Lets the process that [`hold`] has started run its second command, and waits until the process ends. Returns its
/// output.
pub fn let_go(guest: &mut Guest) -> String {
    guest.ok("touch /tmp/go; until [ -e /tmp/gone ]; do usleep 50000; done; cat /tmp/said")
}

/// Lists a directory in one guest while the other guest changes the directory. A name that exists during the whole
/// listing must occur in the listing exactly once.
fn list_a_changing_directory(one: &mut Guest, other: &mut Guest) {
    let names = if full() { 100_000 } else { 1500 };
    one.ok("mkdir /mnt/many");
    // Create the names with several scripts, because on a busy machine one script for all names exceeds the time limit.
    for first in (1..=names).step_by(5000) {
        let last = names.min(first + 4999);
        one.ok(&format!("cd /mnt/many && seq -w {first} {last} | xargs -n 500 mkdir"));
    }
    other.ok("rm -f /tmp/stop; cd /mnt/many; touch /tmp/busy
        (until [ -e /tmp/stop ]; do touch new1 new2 new3 x$((i = i + 1)); rm new1 new2 new3; done; rm /tmp/busy) >/dev/null 2>&1 &");
    for _ in 0..3 {
        assert_eq!(one.ok("ls -1 /mnt/many 2>/dev/null > /tmp/ls; grep -c '^[0-9]' /tmp/ls"), names.to_string());
        assert_eq!(one.ok("sort /tmp/ls | uniq -d"), "");
    }
    other.ok("touch /tmp/stop; while [ -e /tmp/busy ]; do usleep 50000; done; ls /mnt/many | grep -c x");
}

#[test]
fn a_guest_can_change_files_that_another_guest_has_open() {
    let home = tempfile::tempdir().unwrap();
    let lab = servers::start(home.path(), 3, &["--stripe-unit", "1M", "--mds-threshold", "0"]);
    let number = |name| servers::number(&lab, "mgr", name);
    let (mut one, mut other) = Guest::boot_two();
    let port = lab.mgr.proxy.address().port();
    one.mount(port, "vers=4.2");
    other.mount(port, "vers=4.1");
    one.ok("dd if=/dev/urandom of=/tmp/data bs=1M count=4 2>/dev/null");

    // A guest without a layout truncates a file of which the other guest has a layout. The mgr must recall the
    // layout, and no truncated byte may reappear.
    let writes = "dd if=/tmp/data of=/mnt/cut bs=1M count=4 conv=notrunc,fsync 2>/dev/null";
    let grows = "dd if=/tmp/data of=/mnt/cut bs=1M seek=2 skip=2 count=1 conv=notrunc,fsync 2>/dev/null";
    hold(&mut one, "/mnt/cut", writes, grows);
    let recalls = servers::number(&lab, "operations", "recalls");
    other.ok("truncate -s 100 /mnt/cut");
    assert!(servers::number(&lab, "operations", "recalls") > recalls);
    assert_eq!(other.ok("stat -c %s /mnt/cut"), "100");
    assert_eq!(let_go(&mut one), "");
    one.ok(
        "(head -c 100 /tmp/data; head -c 2097052 /dev/zero; tail -c 2097152 /tmp/data | head -c 1048576) > /tmp/cut",
    );
    let wanted = one.ok("md5sum < /tmp/cut");
    assert_eq!(one.ok("echo 3 > /proc/sys/vm/drop_caches; md5sum < /mnt/cut"), wanted);
    assert_eq!(other.ok("md5sum < /mnt/cut"), wanted);

    // Remove a file that one guest has open. In the first round, the other guest removes the file; in the second
    // round, the guest that has the file open removes it. The file must exist until its last close, and then the mgr
    // must free its space.
    for by_other in [true, false] {
        let says = "head -c 1048576 <&3 | md5sum; echo more >&3; cat <&3 | wc -c";
        hold(&mut one, "/mnt/removed", "cp /tmp/data /mnt/removed; sync", says);
        let by = if by_other { &mut other } else { &mut one };
        assert_eq!(by.ok("rm /mnt/removed; ls -A /mnt"), "cut");
        let start = one.ok("head -c 1048576 /tmp/data | md5sum");
        assert_eq!(let_go(&mut one), format!("{start}\n{}", (3 << 20) - 5));
    }
    servers::until(|| servers::number(&lab, "work", "orphans") + servers::number(&lab, "work", "doomed") == 0);

    // The other guest renames a file that the first guest has open. The first guest must still be able to write it.
    hold(&mut one, "/mnt/a", ":", "echo more >&3; cat /mnt/b");
    other.ok("mv /mnt/a /mnt/b");
    assert_eq!(let_go(&mut one), "more");
    assert_eq!(other.ok("cat /mnt/b"), "more");
    // The other guest renames a file over a file that the first guest has open. The open file must keep its content.
    other.ok("echo new > /mnt/c");
    hold(&mut one, "/mnt/b", ":", "cat <&3");
    other.ok("mv /mnt/c /mnt/b");
    assert_eq!(let_go(&mut one), "more");
    assert_eq!(one.ok("cat /mnt/b; ls -A /mnt"), "new\nb\ncut");
    servers::until(|| number("open_files") == 0);

    list_a_changing_directory(&mut one, &mut other);
    one.ok("umount /mnt");
    other.ok("umount /mnt");
    servers::until(|| number("layouts") == 0);
    lab.fsck();
}

#[test]
fn no_state_is_left_of_a_guest_that_lost_power() {
    let home = tempfile::tempdir().unwrap();
    let lab = servers::start_with_lease(home.path(), 2, 5, &["--stripe-unit", "1M", "--mds-threshold", "0"]);
    let number = |name| servers::number(&lab, "mgr", name);
    let idle = (number("clients"), number("sessions"));
    let (mut one, mut other) = Guest::boot_two();
    let port = lab.mgr.proxy.address().port();
    one.mount(port, "vers=4.2");
    other.mount(port, "vers=4.2");
    let writes = "flock 3; dd if=/dev/urandom of=/mnt/file bs=1M count=4 conv=notrunc,fsync 2>/dev/null";
    hold(&mut one, "/mnt/file", writes, ":");
    one.ok("(exec 4<>/mnt/removed; echo x >&4; rm /mnt/removed; sleep 1000) >/dev/null 2>&1 &
        while [ -e /mnt/removed ] || [ $(ls -A /mnt | wc -l) != 1 ]; do usleep 50000; done");
    assert_ne!(other.run("flock -n /mnt/file true").status, 0);
    assert!(number("open_files") >= 2 && number("locks") >= 1 && number("layouts") >= 1);
    drop(one);
    // As soon as the lease of the first guest has expired, the other guest must get the lock of the file.
    assert_eq!(other.ok("flock /mnt/file true; stat -c %s /mnt/file"), (4 << 20).to_string());
    other.ok("umount /mnt");
    drop(other);
    servers::until(|| {
        let left = ["open_files", "locks", "layouts", "lock_waits", "recalls_pending"].map(number);
        left == [0; 5] && (number("clients"), number("sessions")) == idle
    });
    servers::until(|| servers::number(&lab, "work", "orphans") + servers::number(&lab, "work", "doomed") == 0);
    lab.fsck();
}
