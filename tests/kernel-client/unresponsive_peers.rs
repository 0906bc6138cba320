//! Peers that stop replying: a stopped iod, a stopped guest, and a guest that receives no callbacks.

use crate::cluster::signal;
use crate::guest::Guest;
use crate::servers;
use crate::sharing::{hold, let_go};
use rustix::process::Signal;

/// Time limit for a command that waits for state of a guest that has stopped replying. The limit covers the lease,
/// and the time until the kernel of the waiting guest tries again: a kernel that waits for a lock requests the lock
/// every 30 seconds.
const BOUND: &str = "timeout -s KILL 90";

/// A script that appends copies of `/tmp/data` to `/mnt/out` with direct I/O, and to `/mnt/cached` through the page
/// cache. `/tmp/times` counts the copies. The script ends when `/tmp/stop` exists or a write fails.
const WRITER: &str = "
dd if=/dev/urandom of=/tmp/data bs=256k count=8 2>/dev/null
rm -f /tmp/stop /tmp/ended
echo 0 > /tmp/times
(
    i=0
    until [ -e /tmp/stop ]; do
        dd if=/tmp/data of=/mnt/out bs=256k seek=$((i * 8)) conv=notrunc oflag=direct 2>/tmp/said || break
        dd if=/tmp/data of=/mnt/cached bs=256k seek=$((i * 8)) conv=notrunc,fsync 2>/tmp/said || break
        i=$((i + 1))
        echo $i > /tmp/times.new
        mv /tmp/times.new /tmp/times
    done
    echo $i > /tmp/ended
) >/dev/null 2>&1 &";

/// Waits until the script [`WRITER`] has appended `times` more copies of the data to both files.
fn more(guest: &mut Guest, times: u32) {
    let script = "before=$(cat /tmp/times); until [ $(cat /tmp/times) -ge $((before + MORE)) ]; do
        [ -e /tmp/ended ] && cat /tmp/said && exit 1; usleep 50000; done";
    guest.ok(&script.replace("MORE", &times.to_string()));
}

#[test]
fn a_stopped_iod_loses_nothing() {
    let home = tempfile::tempdir().unwrap();
    let options = ["--stripe-unit", "256k", "--mds-threshold", "0", "--iod-wait-secs", "600"];
    let mut lab = servers::start(home.path(), 2, &options);
    let (mut one, mut other) = Guest::boot_two();
    let port = lab.mgr.proxy.address().port();
    one.mount(port, "vers=4.2");
    other.mount(port, "vers=4.1");
    one.ok(WRITER);
    for iod in [0, 1] {
        more(&mut one, 1);
        signal(lab.iods[iod].child(), Signal::STOP);
        // The mgr reports an iod as down only after some time, because an iod with a slow disk may also send no reply
        // for a while.
        servers::until(|| servers::iods_up(&lab) == 1);
        // While the iod is stopped, operations on names, and access to data on the other iod, must still succeed.
        assert_eq!(other.ok("mkdir /mnt/dir; rmdir /mnt/dir; ls /mnt | tr '\\n' ' '"), "cached out ");
        signal(lab.iods[iod].child(), Signal::CONT);
        more(&mut one, 2);
    }
    one.ok("touch /tmp/stop; until [ -e /tmp/ended ]; do usleep 50000; done");
    let times: u32 = one.ok("cat /tmp/ended").parse().unwrap();
    let wanted = one.ok(&format!("for i in $(seq {times}); do cat /tmp/data; done | md5sum"));
    one.ok("echo 3 > /proc/sys/vm/drop_caches");
    for guest in [&mut one, &mut other] {
        for file in ["out", "cached"] {
            assert_eq!(guest.ok(&format!("md5sum < /mnt/{file}")), wanted, "{file}");
        }
        guest.ok("umount /mnt");
    }
    lab.fsck();
}

#[test]
fn a_guest_that_receives_no_recall_does_not_block_another_guest() {
    let home = tempfile::tempdir().unwrap();
    let options = ["--stripe-unit", "1M", "--mds-threshold", "0"];
    let (lab, relays) = servers::start_behind_relays_with_lease(home.path(), 3, 5, &options, 1);
    let (mut one, mut other) = Guest::boot_two();
    // Only the first guest reaches the mgr through the relay, which drops callbacks. So only the first guest receives
    // no callbacks.
    one.mount(relays[0].port(), "vers=4.2");
    other.mount(lab.mgr.proxy.address().port(), "vers=4.1");
    one.ok("dd if=/dev/urandom of=/tmp/data bs=1M count=4 2>/dev/null");
    // In the first round, guest `one` has a delegation of the file, which the mgr recalls before the layout. In the
    // second round, the mgr grants no delegation, because guest `other` has the file open too.
    for shared in [false, true] {
        other.ok(if shared { ": > /mnt/f; (exec 4</mnt/f; touch /tmp/open; until [ -e /tmp/go ]; do usleep 50000; done) >/dev/null 2>&1 & until [ -e /tmp/open ]; do usleep 50000; done" } else { ":" });
        let writes = "dd if=/tmp/data of=/mnt/f bs=1M conv=notrunc,fsync 2>/dev/null";
        let again = "dd if=/tmp/data of=/mnt/f bs=1M seek=2 skip=2 count=1 conv=notrunc,fsync 2>&1";
        hold(&mut one, "/mnt/f", writes, again);
        relays[0].deafen(true);
        other.ok(&format!("{BOUND} truncate -s 100 /mnt/f"));
        assert!(relays[0].unheard() > 0);
        other.ok(&format!("{BOUND} sh -c 'echo after >> /mnt/f; sync'"));
        relays[0].deafen(false);
        let said = let_go(&mut one);
        let (there, here) = (other.ok("md5sum < /mnt/f"), one.ok("md5sum < /mnt/f"));
        println!("shared {shared}: {said:?} {there} {here}");
        one.ok("(head -c 100 /tmp/data; echo after; head -c 2097046 /dev/zero; tail -c 2097152 /tmp/data | head -c 1048576) > /tmp/f");
        assert_eq!(one.ok("echo 3 > /proc/sys/vm/drop_caches; md5sum < /mnt/f"), one.ok("md5sum < /tmp/f"));
        assert_eq!(there, here);
        other.ok("touch /tmp/go; rm /mnt/f");
    }
    for guest in [&mut one, &mut other] {
        guest.ok("umount /mnt");
    }
    lab.fsck();
}

#[test]
fn a_guest_that_continues_after_its_lease_expired_does_no_harm() {
    let home = tempfile::tempdir().unwrap();
    let options = ["--stripe-unit", "1M", "--mds-threshold", "0"];
    let lab = servers::start_with_lease(home.path(), 2, 5, &options);
    let (mut one, mut other) = Guest::boot_two();
    let port = lab.mgr.proxy.address().port();
    one.mount(port, "vers=4.2");
    other.mount(port, "vers=4.2");
    one.ok("dd if=/dev/zero bs=1M count=4 2>/dev/null | tr '\\0' a > /tmp/a");
    other.ok("dd if=/dev/zero bs=1M count=4 2>/dev/null | tr '\\0' b > /tmp/b");
    // The guest writes to the iods through the descriptor to which its lock belongs, until a write fails.
    one.ok("rm -f /tmp/busy /tmp/failed; cp /tmp/a /mnt/f; sync
        (exec 3<>/mnt/f; flock 3; touch /tmp/busy
        while dd if=/tmp/a bs=1M oflag=direct >&3 2>/tmp/said; do :; done
        touch /tmp/failed) >/dev/null 2>&1 &
        until [ -e /tmp/busy ]; do usleep 50000; done");
    assert_ne!(other.run("flock -n /mnt/f true").status, 0);
    one.freeze();
    // When the lease of the stopped guest has expired, the other guest must get the lock of the file.
    other.ok(&format!("exec 3<>/mnt/f; {BOUND} flock 3 && cat /tmp/b > /mnt/f && sync && md5sum < /mnt/f > /tmp/sum"));
    one.thaw();
    one.ok("until [ -e /tmp/failed ]; do usleep 50000; done");
    let wanted = other.ok("md5sum < /tmp/b");
    assert_eq!(other.ok("cat /tmp/sum"), wanted);
    assert_eq!(other.ok("echo 3 > /proc/sys/vm/drop_caches; md5sum < /mnt/f"), wanted);
    assert_eq!(one.ok("echo 3 > /proc/sys/vm/drop_caches; md5sum < /mnt/f"), wanted);
    // After its failed write, the first guest must be able to use the file system like any other client.
    one.ok("cp /tmp/a /mnt/g; flock /mnt/g cmp /tmp/a /mnt/g");
    for guest in [&mut one, &mut other] {
        guest.ok("umount /mnt");
    }
    lab.fsck();
}
