//! Daemons die while a guest writes and holds a lock.

use crate::guest::{Guest, full};
use crate::lab::Lab;
use crate::servers;

/// Writes piece after piece, each made durable, for as long as `/tmp/stop` is not there, under a lock that it gives back when
/// `/tmp/unlock` is there.
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

/// Waits until so many more pieces are written.
fn more(guest: &mut Guest, pieces: u32) {
    let script = "before=$(cat /tmp/pieces); until [ $(cat /tmp/pieces) -ge $((before + MORE)) ]; do
        [ -e /tmp/result ] && cat /tmp/said && exit 1; usleep 50000; done";
    guest.ok(&script.replace("MORE", &pieces.to_string()));
}

/// Whether nobody has the lock.
fn is_free(guest: &mut Guest) -> bool {
    guest.run("flock -n /mnt/lock true").status == 0
}

#[test]
fn a_writer_with_a_lock_goes_on_when_daemons_are_killed() {
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
        // First whom the restart does not concern: as long as it has not said so nobody gets anything new.
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
