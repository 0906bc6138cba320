//! Deaths of daemons while a guest writes and holds a lock: the guest must continue, and no data may be lost.

use crate::guest::{Guest, full};
use crate::lab::Lab;
use crate::servers;

/// A script that writes a file piece by piece and syncs each piece, until `/tmp/stop` exists. The script holds a lock
/// of `/mnt/lock` until `/tmp/unlock` exists.
const WRITER: &str = "
cat > /tmp/writer.sh <<'END'
i=0
until [ -e /tmp/stop ]; do
    dd if=/tmp/piece of=/mnt/out bs=96k seek=$i count=1 conv=notrunc,fsync 2>/tmp/said || exit 1
    i=$((i + 1))
    echo $i > /tmp/pieces.new
    mv /tmp/pieces.new /tmp/pieces
done
END
dd if=/dev/urandom of=/tmp/piece bs=96k count=1 2>/dev/null
rm -f /tmp/stop /tmp/unlock /tmp/result
echo 0 > /tmp/pieces
: > /mnt/lock
(
    exec 9<>/mnt/lock
    flock 9 && sh /tmp/writer.sh
    echo $? > /tmp/result
    until [ -e /tmp/unlock ]; do usleep 100000; done
) >/dev/null 2>&1 &";

/// Waits until the script [`WRITER`] has written `pieces` more pieces of its file in the guest.
fn more(guest: &mut Guest, pieces: u32) {
    let script = "before=$(cat /tmp/pieces); until [ $(cat /tmp/pieces) -ge $((before + MORE)) ]; do
        [ -e /tmp/result ] && cat /tmp/said && exit 1; usleep 50000; done";
    guest.ok(&script.replace("MORE", &pieces.to_string()));
}

/// Returns whether no guest holds the lock on `/mnt/lock`.
fn is_free(guest: &mut Guest) -> bool {
    guest.run("flock -n /mnt/lock true").status == 0
}

#[test]
fn a_writer_with_a_lock_continues_after_daemons_are_killed() {
    let home = tempfile::tempdir().unwrap();
    let mut lab = servers::start(home.path(), 2, &["--stripe-unit", "256k"]);
    let (mut one, mut other) = Guest::boot_two();
    let port = lab.mgr.proxy.address().port();
    one.mount(port, "vers=4.2");
    other.mount(port, "vers=4.1");
    one.ok(WRITER);
    let kills: [fn(&mut Lab); 3] = [
        |lab| lab.iods[0].kill(),
        |lab| lab.mgr.kill(),
        |lab| {
            lab.mgr.kill();
            lab.iods[0].kill();
            lab.iods[1].kill();
        },
    ];
    for kill in (0..if full() { 10 } else { 1 }).flat_map(|_| kills) {
        more(&mut one, 5);
        assert!(!is_free(&mut other));
        kill(&mut lab);
        for daemon in lab.daemons().filter(|daemon| !daemon.is_running()) {
            daemon.restart();
        }
        // Let the guest that has nothing to reclaim request the lock first. The mgr must refuse the lock, because the
        // mgr grants no new state until every guest has completed its reclaims (RECLAIM_COMPLETE).
        assert!(!is_free(&mut other));
        more(&mut one, 5);
    }
    one.ok("touch /tmp/stop; until [ -e /tmp/result ]; do usleep 50000; done");
    assert_eq!(one.ok("cat /tmp/result"), "0");
    assert!(!is_free(&mut other));
    one.ok("touch /tmp/unlock");
    other.ok("flock /mnt/lock true");
    let pieces: u32 = one.ok("cat /tmp/pieces").parse().unwrap();
    let wanted = one.ok(&format!("for i in $(seq {pieces}); do cat /tmp/piece; done | md5sum"));
    assert_eq!(one.ok("echo 3 > /proc/sys/vm/drop_caches; md5sum < /mnt/out"), wanted);
    assert_eq!(other.ok("md5sum < /mnt/out"), wanted);
    for guest in [&mut one, &mut other] {
        guest.ok("umount /mnt");
    }
    lab.fsck();
}

/// Runs a script that must end within ten seconds but may fail. Returns the exit status of the script.
fn within_ten_seconds(guest: &mut Guest, script: &str) -> i32 {
    let done = guest.run(&format!("timeout -s KILL 10 sh -c '{script}'"));
    assert_ne!(done.status, 137, "{script}\n{}\n{}", done.output, guest.console());
    done.status
}

#[test]
fn a_dead_iod_affects_only_the_bytes_on_it() {
    let home = tempfile::tempdir().unwrap();
    let mut lab = servers::start(home.path(), 2, &["--stripe-unit", "256k", "--mds-threshold", "0"]);
    let (mut one, mut other) = Guest::boot_two();
    let port = lab.mgr.proxy.address().port();
    for (guest, version) in [(&mut one, "vers=4.2"), (&mut other, "vers=4.1")] {
        guest.mount(port, version);
    }
    one.ok("dd if=/dev/urandom of=/tmp/data bs=256k count=8 2>/dev/null; cp /tmp/data /mnt/striped");
    other.ok("cp /mnt/striped /tmp/data");
    one.ok("cp /tmp/data /mnt/removed; mkdir /mnt/alone");
    lab.run(["policy", "set", "/alone", "stripe_count=1"]);
    one.ok("for i in 1 2 3 4; do cp /tmp/data /mnt/alone/$i; done; sync");
    // Start an idle process that has the file open for writing, so that the guest keeps a layout of the file.
    one.ok("sleep 1000 3<>/mnt/striped >/dev/null 2>&1 & echo $! > /tmp/holder");
    one.ok("dd if=/tmp/data of=/mnt/striped bs=256k count=2 conv=notrunc,fsync 2>/dev/null");
    let layouts = |lab: &Lab| servers::number(lab, "mgr", "layouts");
    assert!(layouts(&lab) > 0);
    lab.iods[0].kill();
    // The file is striped over two iods, so only half of its 256 KiB pieces are on the iod that still runs.
    one.ok("echo 3 > /proc/sys/vm/drop_caches");
    let piece = |op: &str, i: usize| match op {
        "read" => format!("dd if=/mnt/striped of=/dev/null bs=256k count=1 skip={i}"),
        _ => format!("dd if=/tmp/data of=/mnt/striped bs=256k count=1 skip={i} seek={i} conv=notrunc,fsync"),
    };
    for op in ["read", "write"] {
        let outcomes: Vec<i32> = (0..8).map(|i| within_ten_seconds(&mut one, &piece(op, i))).collect();
        assert!(outcomes == [0, 1, 0, 1, 0, 1, 0, 1] || outcomes == [1, 0, 1, 0, 1, 0, 1, 0], "{op}: {outcomes:?}");
    }
    // The mgr must recall the guest's layout of the striped file, and must grant no layout of this file while the iod
    // is down.
    servers::until(|| layouts(&lab) == 0);
    let before = other.mountstats();
    let there: Vec<i32> = (0..8).map(|i| within_ten_seconds(&mut other, &piece("write", i))).collect();
    let since = other.mountstats().since(&before);
    assert_eq!(there.iter().filter(|status| **status == 0).count(), 4, "{there:?} {since:?}");
    assert!(since["LAYOUTGET"] > 0 && since["WRITE"] >= 4, "{since:?}");
    assert_eq!(layouts(&lab), 0);
    let whole = "for i in 1 2 3 4; do cmp /tmp/data /mnt/alone/$i 2>/dev/null && echo $i; done; true";
    assert_eq!(other.ok("ls /mnt/alone | wc -l"), "4");
    let whole = one.ok(&format!("echo 3 > /proc/sys/vm/drop_caches; {whole}"));
    assert_eq!(whole.lines().count(), 2, "{whole}");
    // Renames, new files and removals must succeed while the iod is down.
    assert_eq!(within_ten_seconds(&mut one, "rm /mnt/removed; mv /mnt/striped /mnt/moved; echo new > /mnt/new"), 0);
    assert_eq!(other.ok("cat /mnt/new"), "new");
    assert_ne!(within_ten_seconds(&mut other, ": > /mnt/moved"), 0);
    lab.iods[0].restart();
    servers::until(|| servers::iods_up(&lab) == 2);
    assert_eq!(one.ok("kill $(cat /tmp/holder); cmp /tmp/data /mnt/moved; : > /mnt/moved; stat -c %s /mnt/moved"), "0");
    // While the iod was down, the guest could not use the direct path. After the restart of the iod, the guest must
    // use the direct path for its next file at once, not only after the two minutes for which Linux avoids a failed
    // data server.
    let proxied = || ["proxy_write_bytes", "proxy_read_bytes"].map(|name| servers::number(&lab, "counters", name));
    let (before, counted) = (proxied(), one.mountstats());
    one.ok("cp /tmp/data /mnt/after && sync && echo 3 > /proc/sys/vm/drop_caches && cmp /tmp/data /mnt/after");
    assert_eq!(proxied(), before, "{:?}", one.mountstats().since(&counted));
    for guest in [&mut one, &mut other] {
        guest.ok("umount /mnt");
    }
    lab.fsck();
}
