//! One guest that writes and reads files through the page cache, with direct I/O and through mappings, and creates
//! files of every type.

use crate::guest::{Guest, full};
use crate::servers;

/// The options of each mount, and the number of connections that the mount must make to each server.
const MOUNTS: [(&str, usize); 2] = [("vers=4.1", 1), ("vers=4.2,nconnect=4", 4)];

#[test]
fn large_files_are_intact_whichever_way_they_are_written() {
    let home = tempfile::tempdir().unwrap();
    let lab = servers::start(home.path(), 2, &["--stripe-unit", "1M", "--mds-threshold", "0"]);
    let mib = if full() { 256 } else { 16 };
    let mut guest = Guest::boot();
    guest.ok(&format!("dd if=/dev/urandom of=/tmp/data bs=1M count={mib} 2>/dev/null"));
    let sum = guest.ok("md5sum < /tmp/data");
    for (options, connections) in MOUNTS {
        guest.mount(lab.mgr.proxy.address().port(), options);
        let map =
            format!("xfs_io -f -c 'truncate {mib}m' -c 'mmap 0 {mib}m' -c 'mwrite -S 0x41 0 {mib}m' -c 'msync -s'");
        let map = format!("{map} /mnt/file; dd if=/tmp/data of=/mnt/file bs=1M conv=notrunc,fsync 2>/dev/null");
        for way in [
            "dd if=/tmp/data of=/mnt/file bs=1M conv=fsync 2>/dev/null",
            "dd if=/tmp/data of=/mnt/file bs=1M oflag=direct 2>/dev/null",
            "dd if=/tmp/data of=/mnt/file bs=4k conv=fsync 2>/dev/null",
            &map,
        ] {
            let asked = || ["layoutget", "write", "read"].map(|name| servers::counted(&lab, "operations", name));
            let before = asked();
            guest.ok(way);
            // Each open may need at most one layout, and no byte may take the mgr path.
            let after = asked();
            assert!((1..=2).contains(&(after[0] - before[0])), "{way}: {before:?} {after:?}");
            assert_eq!(after[1..], before[1..], "{way}");
            assert_eq!(guest.ok("echo 3 > /proc/sys/vm/drop_caches; md5sum < /mnt/file"), sum, "{way}");
            assert_eq!(asked()[2], before[2], "{way}");
            guest.ok("dd if=/mnt/file bs=1M iflag=direct 2>/dev/null | cmp - /tmp/data && rm /mnt/file");
        }
        let port = lab.mgr.proxy.address().port();
        let made = guest.ok(&format!("netstat -tn | grep -c ':{port} .*ESTABLISHED'"));
        assert_eq!(made, connections.to_string());
        guest.ok("umount /mnt");
    }
    lab.fsck();
}

#[test]
fn every_kind_of_file_can_be_created_and_used() {
    let home = tempfile::tempdir().unwrap();
    let lab = servers::start(home.path(), 2, &["--stripe-unit", "64k"]);
    let mut guest = Guest::boot();
    guest.mount(lab.mgr.proxy.address().port(), "vers=4.2");
    // Programs in the guest create special files, symbolic links and hard links.
    guest.ok("cd /mnt; mkfifo p; mknod c c 1 3; mknod b b 8 1; ln -s some/where s; echo x > f; ln f g");
    let stat = "stat -c '%n %F %h %t %T' /mnt/*; readlink /mnt/s";
    let kinds = "/mnt/b block special file 1 8 1\n/mnt/c character special file 1 1 3\n/mnt/f regular file 2 0 0\n\
                 /mnt/g regular file 2 0 0\n/mnt/p fifo 1 0 0\n/mnt/s symbolic link 1 0 0\nsome/where";
    assert_eq!(guest.ok(stat), kinds);
    assert_eq!(guest.ok("cd /mnt; echo y > c; (echo through > p &); cat p; rm b c p s g; stat -c %h f"), "through\n1");
    // Programs in the guest set, list and remove extended attributes.
    guest.ok("cd /mnt; setfattr -n user.a -v hello f; setfattr -n user.b -v 0x00ff f");
    assert_eq!(guest.ok("cd /mnt; getfattr -d -e hex f"), "# file: f\nuser.a=0x68656c6c6f\nuser.b=0x00ff");
    guest.ok("cd /mnt; setfattr -x user.a f; setfattr -n user.big -v 0x$(head -c 40000 /dev/zero | hexdump -ve '/1 \"%02x\"') f");
    assert_eq!(
        guest.ok("cd /mnt; getfattr -n user.big --only-values f | wc -c; getfattr f"),
        "40000\n# file: f\nuser.b\nuser.big"
    );
    assert_ne!(guest.run("setfattr -n trusted.x -v 1 /mnt/f").status, 0);
    // Programs in the guest write a file with holes, find the holes with `lseek`, and punch a hole.
    guest.ok("xfs_io -f -c 'pwrite -q 0 64k' -c 'pwrite -q 1m 64k' -c 'truncate 2m' -c 'fsync' /mnt/h");
    let seek = |guest: &mut Guest| guest.ok("xfs_io -r -c 'seek -a -r 0' /mnt/h | tail -n +2 | tr '\\n\\t' '; '");
    assert_eq!(seek(&mut guest), "DATA 0;HOLE 65536;DATA 1048576;HOLE 1114112;");
    guest.ok("xfs_io -c 'fpunch 16k 32k' -c 'fsync' /mnt/h");
    assert_eq!(seek(&mut guest), "DATA 0;HOLE 16384;DATA 49152;HOLE 65536;DATA 1048576;HOLE 1114112;");
    assert_eq!(guest.ok("stat -c %s /mnt/h; head -c 49152 /mnt/h | tail -c 32768 | tr -d '\\0' | wc -c"), "2097152\n0");
    // With direct I/O, a program gets exactly the bytes that the server returns. So the server must not end the reply
    // to a READ at a hole, as if the file ended there.
    let direct =
        "dd if=/mnt/h bs=64k iflag=direct 2>/dev/null | md5sum; dd if=/mnt/h bs=64k skip=24 iflag=direct | wc -c";
    let whole = guest.ok("echo 3 > /proc/sys/vm/drop_caches; md5sum < /mnt/h");
    assert_eq!(guest.ok(&format!("({direct}) 2>/dev/null")), format!("{whole}\n524288"));
    check_reserved_storage(&mut guest);
    // Programs in the guest copy data from one file to another within the file system.
    let by_mgr = |name| servers::counted(&lab, "counters", name);
    let passed = || by_mgr("proxy_read_bytes") + by_mgr("proxy_write_bytes");
    guest.ok("dd if=/dev/urandom of=/mnt/from bs=1M count=3 conv=fsync 2>/dev/null");
    let before = (passed(), by_mgr("iod_copied_bytes"));
    guest.ok("xfs_io -f -c 'copy_range /mnt/from' -c 'fsync' /mnt/to");
    // No byte of the copies may take the mgr path, because the iods must copy the bytes.
    assert_eq!((passed(), by_mgr("iod_copied_bytes")), (before.0, before.1 + (3 << 20)));
    guest.ok("cmp /mnt/from /mnt/to && xfs_io -c 'copy_range -s 100000 -d 3 -l 1000001 /mnt/from' -c 'fsync' /mnt/to");
    guest.ok("echo 3 > /proc/sys/vm/drop_caches; dd if=/mnt/from iflag=skip_bytes,count_bytes skip=100000 count=1000001 bs=64k 2>/dev/null > /tmp/part; \
              dd if=/mnt/to iflag=skip_bytes,count_bytes skip=3 count=1000001 bs=64k 2>/dev/null | cmp - /tmp/part && rm /tmp/part");
    // Check permissions that only the server can enforce: modes, owners, and the sticky bit.
    guest.ok(
        "cd /mnt; mkdir sticky; chmod 1777 sticky; echo root > sticky/root; su alice -c 'echo mine > /mnt/sticky/mine'",
    );
    assert_eq!(guest.ok("stat -c '%a %u %g' /mnt/sticky /mnt/sticky/mine"), "1777 0 0\n644 1000 1000");
    assert_ne!(guest.run("su bob -c 'rm -f /mnt/sticky/mine'").status, 0);
    assert_ne!(guest.run("su alice -c 'echo x >> /mnt/sticky/root'").status, 0);
    guest.ok("umount /mnt");
    lab.fsck();
}

/// Asserts that `fallocate` extends a file, allocates storage and changes no byte, and that punching a hole frees the
/// storage.
fn check_reserved_storage(guest: &mut Guest) {
    guest.ok("echo data > /mnt/room; xfs_io -c 'falloc 1m 2m' /mnt/room");
    assert_eq!(
        guest.ok("stat -c %s /mnt/room; head -c 5 /mnt/room; tr -d '\\0' < /mnt/room | wc -c"),
        "3145728\ndata\n5"
    );
    let kib = |guest: &mut Guest| guest.ok("sync; du -k /mnt/room | cut -f1").parse::<u64>().unwrap();
    assert!(kib(guest) >= 2048);
    // `fallocate` must be able to reserve storage within the file. With `-n` (keep the size), `fallocate` must fail
    // beyond the end of the file, because NFS has no operation for this.
    guest.ok("/usr/bin/fallocate -o 0 -l 1m /mnt/room");
    assert_ne!(guest.run("/usr/bin/fallocate -n -o 4m -l 1m /mnt/room").status, 0);
    assert_eq!(guest.ok("stat -c %s /mnt/room"), "3145728");
    guest.ok("dd if=/dev/urandom of=/tmp/part bs=64k count=9 2>/dev/null; dd if=/tmp/part of=/mnt/room bs=64k seek=16 conv=notrunc,fsync 2>/dev/null");
    guest.ok("echo 3 > /proc/sys/vm/drop_caches; dd if=/mnt/room bs=64k skip=16 count=9 2>/dev/null | cmp - /tmp/part");
    guest.ok("/usr/bin/fallocate -p -o 64k -l 2944k /mnt/room");
    assert_eq!(guest.ok("stat -c %s /mnt/room; tr -d '\\0' < /mnt/room | wc -c"), "3145728\n5");
    assert_ne!(guest.run("/usr/bin/fallocate -l 64t /mnt/room").status, 0, "more than there is");
    guest.ok("rm /mnt/room /tmp/part");
}
